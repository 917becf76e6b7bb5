"""The GPU's kernels compile, and use tensor cores, on a machine that has Triton and no GPU."""

import pytest
import torch

from fedmes.models import grouped_convolution

triton = pytest.importorskip("triton", reason="Triton comes with torch's builds for GPUs alone")

LAYERS = [(3, 32, 32), (32, 64, 16), (128, 128, 8), (20, 17, 10)]  # channels in and out, side
KERNEL, PADDING = [3, 3], [1, 1]
NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.uint8: "*u8"}


def launches(ci, co, side):
    """Each kernel in each of its kinds."""
    from fedmes.models import grouped_kernels as kernels

    def images(channels):
        return torch.empty(2, 40, side, side, channels, dtype=torch.bfloat16, device="meta")

    x, g = images(ci), images(co)
    taps = torch.empty(2, 9, ci, co, dtype=torch.bfloat16, device="meta")
    bias = taps[:, 0, 0]
    how = KERNEL, PADDING
    pooled, place = grouped_convolution.convolve_and_pool_shape(x, taps, bias, *how)
    sums = grouped_convolution.weight_gradient_shape(x, g, *how)
    return {
        "convolution": kernels.convolve(g, x, taps, None, None, False, *how),
        "with a ReLU": kernels.convolve(g, x, taps, bias, None, False, *how),
        "to the input": kernels.convolve(x, g, taps, None, x, True, *how),
        "with pooling": kernels.convolve_and_pool(pooled, place, x, taps, bias, *how),
        "to the weights": kernels.weight_gradient(*sums, x, g, *how),
        "through pooling": kernels.unpool(g, pooled, place),
    }


def machine_code(launch, capability):
    from triton.backends.compiler import GPUTarget

    signature = {}
    constants = {}
    hints = {}
    given = [*launch.tensors, *launch.counts, *launch.sizes]
    for i, (parameter, value) in enumerate(zip(launch.kernel.params, given, strict=True)):
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = NAMES[value.dtype]
            hints[i,] = [["tt.divisibility", 16]]
        elif value is None or parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[i,] = value
        else:
            signature[parameter.name] = "i32"
    source = triton.compiler.ASTSource(launch.kernel, signature, constants, hints)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=launch.tile.how()).asm["ptx"]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("layer", LAYERS)
def test_kernels_compile_and_use_tensor_cores(layer, capability):
    for name, launch in launches(*layer).items():
        code = machine_code(launch, capability)
        assert ("mma" in code) == (name != "through pooling"), name
