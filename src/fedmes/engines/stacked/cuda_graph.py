"""What a GPU does between steps, replayed from CUDA graphs: launching it from Python took longer
than doing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from fedmes.errors import first_line

T = TypeVar("T")


class Captured(Generic[T]):
    """A function of tensors that keep their place. On a GPU it runs once as it is, then from a
    graph."""

    def __init__(self, function: Callable[[], T], device: torch.device, notes: list[str]) -> None:
        self.function = function
        self.notes = notes
        self.capture = device.type == "cuda"
        self.warm = False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: T

    def __call__(self) -> T:
        if self.graph is None and self.capture and self.warm:
            self._record()
        self.warm = True
        if self.graph is None:
            return self.function()
        self.graph.replay()
        return self.result

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            # the planning thread pins memory
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.result = self.function()
        except Exception as error:  # what cannot be recorded still runs
            self.capture = False
            self.notes.append(
                f"a part of each round is not captured in a CUDA graph ({first_line(error)})"
            )
        else:
            self.graph = graph
