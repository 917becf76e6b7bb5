"""A lane's step, compiled.

`torch.compile` reads a step's bytecode before it sees an operator, anew in every process. Here the
operators are written down while the step runs on tensors without values, and Inductor compiles the
list. It finds the result in its cache if it has compiled the same one before.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fedmes.engines.stacked.convolution_pass import GroupedConvolutions
from fedmes.models.grouped_convolution import has_kernels

PERMUTE = torch.ops.aten.permute.default
VIEWS = {PERMUTE, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}


def compiled(
    step: Callable[[], None], device: torch.device, own_kernels: bool
) -> Callable[[], object]:
    """The same step as a sequence of compiled kernels. All tensors that it reads and writes must
    keep their place."""
    # float32 is meant where it is asked for
    warnings.filterwarnings("ignore", "TensorFloat32", UserWarning)
    graph = make_fx(lambda: step(), tracing_mode="fake", _allow_non_fake_inputs=True)()
    simplify(graph.graph)
    tensors = as_inputs(graph, device)
    # the cache is for graphs that were traced in such a context
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))), _no_collection():
        function = torch._inductor.compile(graph, [*tensors], options=_options(device, own_kernels))
    return lambda: function(*tensors)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Meanwhile Python looks for no garbage. The compiler makes millions of objects that it keeps,
    and the search among them takes a twentieth of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def simplify(graph: fx.Graph) -> None:
    """Leave out views that change nothing, and make views of views one: mapping over clients writes
    hundreds of them, and the compiler's time grows with what it has to follow."""
    for node in list(graph.nodes):
        if node.target not in VIEWS:
            continue
        given = node.args[0]
        if node.target is not PERMUTE and given.target in VIEWS - {PERMUTE}:
            origin = given.args[0]
            if _shape(origin.meta["val"].reshape(node.args[1])) == _shape(node.meta["val"]):
                node.args = (origin, node.args[1])
                given = origin
        if _shape(given.meta["val"]) == _shape(node.meta["val"]):
            node.replace_all_uses_with(given)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _shape(t: Tensor) -> tuple[object, ...]:
    return t.shape, t.stride()


def as_inputs(module: fx.GraphModule, device: torch.device) -> list[Tensor]:
    """The device's tensors that a graph holds become its inputs, because the compiler takes what a
    graph holds for constants."""
    graph = module.graph
    places: dict[Tensor, fx.Node] = {}
    held = [node for node in graph.nodes if node.op == "get_attr"]
    first = next(node for node in graph.nodes if node.op != "get_attr")
    for node in held:
        value = getattr(module, str(node.target))
        if not isinstance(value, Tensor) or value.device.type != device.type:
            continue
        if value not in places:
            with graph.inserting_before(first):
                places[value] = graph.placeholder(f"tensor_{len(places)}")
        node.replace_all_uses_with(places[value])
        graph.erase_node(node)
    module.recompile()
    return list(places)


def _options(device: torch.device, own_kernels: bool) -> dict[str, Any]:
    if device.type != "cuda":
        # C++ around the kernels releases Python's lock, so that lanes on a CPU run in parallel
        return {"cpp_wrapper": True}
    options: dict[str, Any] = {}
    # Analyses that took 5 to 8 of 56 seconds and made a step 1 % faster. Not every torch has them.
    settings = torch._inductor.config
    if hasattr(settings, "loop_ordering_after_fusion"):
        options["loop_ordering_after_fusion"] = False
    if hasattr(settings.triton, "coalesce_tiling_analysis"):
        options["triton.coalesce_tiling_analysis"] = False
    if hasattr(settings.triton, "autotune_pointwise"):
        # without races among variants of kernels, first calls take 3 s less and a step no longer
        options["triton.autotune_pointwise"] = False
    if torch.backends.cudnn.deterministic and hasattr(settings, "deterministic"):
        # Kernels that repeat (devices.py). By default the compiler takes the variant of a kernel
        # that wins a race, and the winner decides how sums are rounded.
        options["deterministic"] = True
    if own_kernels and has_kernels(device):
        options["post_grad_custom_pre_pass"] = GroupedConvolutions()
    return options
