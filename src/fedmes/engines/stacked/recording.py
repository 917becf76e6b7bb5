"""A lane's step, recorded for a CPU.

Mapping a method over clients costs more than the operators of a small network that come of it. They
are written down once, and TorchScript repeats them: the same operators on the same tensors, so the
same bits, but without Python, whose lock lanes would wait for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedmes.engines.stacked.compiling import as_inputs


def recorded(step: Callable[[], None]) -> Callable[[], object]:
    """The same step. All tensors that it reads and writes must keep their place."""
    graph = make_fx(lambda: step(), tracing_mode="fake", _allow_non_fake_inputs=True)()
    tensors = tuple(as_inputs(graph, torch.device("cpu")))
    graph.graph.eliminate_dead_code()
    graph.recompile()

    def replay(*tensors: Tensor) -> Tensor:
        graph(*tensors)
        return tensors[0]  # TorchScript wants an answer

    with warnings.catch_warnings():
        # of torch, which recommends its compiler; that needs one for C++
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(replay, tensors, check_trace=False)

    def run() -> None:
        # as recorded: TorchScript's own fusion would round differently
        with torch.jit.optimized_execution(False):
            script(*tensors)

    return run
