"""Convolutions of all clients in one launch, for a GPU in bf16.

Mapped over clients, a convolution becomes one with a group for each client. cuDNN runs most of
those group after group, with conversions of layout in between. The kernels here (conv_kernels.py)
take all groups at once. They enter a compiled step as a pass over its graph, so that networks and
methods need not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten = torch.ops.aten
BF16 = torch.bfloat16

# channels that one program of a kernel takes on
OUTPUTS = 128
INPUTS = 64
# A gradient's sum over pixels is shared out: to so many programs that a GPU is busy and that none
# adds up for too long, but not in small change.
PROGRAMS = 2048
MOST_PIXELS = 5120
FEWEST_PIXELS = 1024
# a kernel counts the numbers of a group in 32 bits
MOST_NUMBERS = 2**31


# --- operators: images [group, n, h, w, channel]; weights by tap, [group, kh * kw, in, out] -------


@torch.library.custom_op("fedmes::convolve", mutates_args=(), device_types="cuda")
def convolve(x: Tensor, taps: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    """A stride-1 convolution of all groups; an input gradient is one too, with flipped taps and in
    for out."""
    from fedmes.engines.stacked import conv_kernels

    out = convolve_shape(x, taps, kernel, padding)
    conv_kernels.convolve(x.contiguous(), taps.contiguous(), out, kernel, padding).run()
    return out


@convolve.register_fake
def convolve_shape(x: Tensor, taps: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    groups, n, *sides, _ = x.shape
    sides = [side + 2 * p - k + 1 for side, k, p in zip(sides, kernel, padding, strict=True)]
    return x.new_empty(groups, n, *sides, taps.shape[-1])


@torch.library.custom_op("fedmes::weight_gradient", mutates_args=(), device_types="cuda")
def weight_gradient(x: Tensor, g: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    """The gradient of `convolve` to its taps, [part, group, tap, out, in]: in float32 parts that
    are still to be added up (in a fixed order)."""
    from fedmes.engines.stacked import conv_kernels

    out = weight_gradient_shape(x, g, kernel, padding)
    conv_kernels.weight_gradient(x.contiguous(), g.contiguous(), out, kernel, padding).run()
    return out


@weight_gradient.register_fake
def weight_gradient_shape(x: Tensor, g: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    groups, n, oh, ow, co = g.shape
    ci = x.shape[-1]
    taps = kernel[0] * kernel[1]
    programs = groups * taps * -(-co // OUTPUTS) * -(-ci // INPUTS)
    pixels = n * oh * ow
    parts = max(PROGRAMS // programs, pixels // MOST_PIXELS)
    parts = max(1, min(parts, pixels // FEWEST_PIXELS))
    return x.new_empty(parts, groups, taps, co, ci, dtype=torch.float32)


# --- the pass over a compiled step's graph --------------------------------------------------------


class GroupedConvolutions(CustomGraphPass):
    """Replaces a graph's grouped convolutions by these kernels."""

    def __call__(self, graph: fx.Graph) -> None:
        rewriting = _Rewriting(graph)
        for node in list(graph.nodes):
            if node.target is aten.convolution.default:
                rewriting.forward(node)
            elif node.target is aten.convolution_backward.default:
                rewriting.backward(node)
        graph.eliminate_dead_code()
        _compile_ahead(graph)

    def uuid(self) -> Any:
        from fedmes.engines.stacked import conv_kernels

        return get_hash_for_files((__file__, conv_kernels.__file__))


class _Rewriting:
    """A graph whose convolutions are being replaced."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.channels_last: dict[fx.Node, fx.Node] = {}  # of images [n, group * channel, h, w]

    def forward(self, node: fx.Node) -> None:
        arguments: Any = node.args
        x, w, *how = arguments
        if not _can(x, w, how):
            return
        padding = list(how[2])
        groups = how[6]
        pixels = self.pixels(x, groups)
        with self.graph.inserting_before(node):
            out = self.convolution(pixels, self.by_tap(w, groups, [0, 3, 2, 1]), w, padding)
            node.replace_all_uses_with(self.images(out))

    def backward(self, node: fx.Node) -> None:
        arguments: Any = node.args
        g, x, w, _, *how = arguments
        if not _can(x, w, [None, *how[:-1]]):
            return
        padding = list(how[1])
        groups = how[5]
        gradient = self.pixels(g, groups)
        pixels = self.pixels(x, groups)
        for part in list(node.users):  # getitem nodes
            with self.graph.inserting_before(part):
                if part.args[1] == 0:
                    part.replace_all_uses_with(self.to_input(gradient, w, padding, groups))
                elif part.args[1] == 1:
                    part.replace_all_uses_with(self.to_weight(gradient, pixels, w, padding))

    def to_input(self, g: fx.Node, w: fx.Node, padding: list[int], groups: int) -> fx.Node:
        """g * flipped w."""
        flipped = self.by_tap(w, groups, [0, 3, 1, 2], flip=True)
        kernel = _size(w)[2:]
        wider = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
        return self.images(self.convolution(g, flipped, w, wider))

    def to_weight(self, g: fx.Node, x: fx.Node, w: fx.Node, padding: list[int]) -> fx.Node:
        write = self.write
        parts = write(torch.ops.fedmes.weight_gradient.default, x, g, _size(w)[2:], padding)
        taps = write(aten.permute.default, write(aten.sum.dim_IntList, parts, [0]), [0, 2, 3, 1])
        gradient = write(aten.reshape.default, taps, _size(w))
        return write(torch.ops.prims.convert_element_type.default, gradient, BF16)

    def convolution(
        self, pixels: fx.Node, taps: fx.Node, w: fx.Node, padding: list[int]
    ) -> fx.Node:
        return self.write(torch.ops.fedmes.convolve.default, pixels, taps, _size(w)[2:], padding)

    def by_tap(self, w: fx.Node, groups: int, order: list[int], flip: bool = False) -> fx.Node:
        """Weights in whole lines; the compiler makes that a part of their rounding to bf16."""
        out, inputs, *_ = _size(w)
        split = self.write(aten.reshape.default, w, [groups, out // groups, inputs, -1])
        if flip:
            split = self.write(torch.ops.prims.rev.default, split, [3])
        return self.packed(self.write(aten.permute.default, split, order))

    def pixels(self, images: fx.Node, groups: int) -> fx.Node:
        """Images with their channels last. From here on everybody reads those, so that the compiler
        keeps no other copy."""
        if images not in self.channels_last:
            n, channels, *sides = _size(images)
            size = [n, groups, channels // groups, *sides]
            with self.graph.inserting_before(images.next):
                split = self.write(aten.reshape.default, images, size)
                pixels = self.packed(self.write(aten.permute.default, split, [1, 0, 3, 4, 2]))
                again = self.images(pixels)
            images.replace_all_uses_with(again, delete_user_cb=lambda user: user is not split)
            self.channels_last |= {images: pixels, again: pixels}
        return self.channels_last[images]

    def images(self, pixels: fx.Node) -> fx.Node:
        """With their channels where torch has them."""
        groups, n, *sides, channels = _size(pixels)
        split = self.write(aten.permute.default, pixels, [1, 0, 4, 2, 3])
        return self.write(aten.reshape.default, split, [n, groups * channels, *sides])

    def packed(self, node: fx.Node) -> fx.Node:
        return self.write(aten.clone.default, node, memory_format=torch.contiguous_format)

    def write(self, target: Any, *arguments: Any, **named: Any) -> fx.Node:
        new = self.graph.call_function(target, arguments, named)
        new.meta["val"] = target(*map(_value, arguments), **named)
        return new


def _compile_ahead(graph: fx.Graph) -> None:
    """Begin to compile the kernels that a graph launches, while the compiler works on the rest."""
    ours = [node for node in graph.nodes if getattr(node.target, "namespace", "") == "fedmes"]
    if not ours or _value(ours[0]).device.type != "cuda":
        return
    from fedmes.engines.stacked import conv_kernels

    launches = {
        torch.ops.fedmes.convolve.default: conv_kernels.convolve,
        torch.ops.fedmes.weight_gradient.default: conv_kernels.weight_gradient,
    }
    made = []
    for node in ours:
        one, other, *how = map(_value, node.args)
        made.append(launches[node.target](one, other, _value(node), *how))
    conv_kernels.compile_ahead(made)


def _can(x: fx.Node, w: fx.Node, how: list[Any]) -> bool:
    """Can these kernels do it?"""
    bias, stride, _, dilation, transposed, _, groups = how
    image = _value(x)
    channels = max(_size(w)[0], _size(x)[1]) // groups
    return (
        bias is None
        and set(stride) == {1}
        and set(dilation) == {1}
        and not transposed
        and groups > 1
        and image.ndim == 4
        and image.dtype == BF16
        and image[:, 0].numel() * channels < MOST_NUMBERS
    )


def _size(node: fx.Node) -> list[int]:
    return list(_value(node).shape)


def _value(item: Any) -> Any:
    """A node's fake tensor; anything else as it is."""
    return item.meta["val"] if isinstance(item, fx.Node) else item
