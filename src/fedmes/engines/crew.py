"""Clients at the same time on the cores of a CPU: one thread each, not one convolution over all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import nn

from fedmes.methods.base import Method

T = TypeVar("T")
Found = TypeVar("Found")


class Crew:
    """As many threads as torch has, for work that is the same for every client. torch lets go of
    Python's lock within a layer, so layers that take long run side by side."""

    def __init__(self, method: Method, device: torch.device) -> None:
        self.method = method
        # a custom network may hold what cannot be copied
        self.several = device.type == "cpu" and method.net.ours
        self._made = 0
        self._free: SimpleQueue[Method] = SimpleQueue()

    def map(self, work: Callable[[Method, T], Found], items: Sequence[T]) -> list[Found]:
        """What the work finds for each, in their order. With fewer items than threads, each has
        several."""
        threads = torch.get_num_threads()
        at_once = min(threads, len(items)) if self.several else 1
        if at_once <= 1:
            return [work(self.method, item) for item in items]

        @torch.no_grad()  # which a thread does not inherit
        def one(item: T) -> Found:
            method = self._free.get()
            try:
                return work(method, item)
            finally:
                self._free.put(method)

        for _ in range(self._made, at_once):
            self._free.put(method_for_a_thread(self.method))
        self._made = max(self._made, at_once)
        torch.set_num_threads(threads // at_once)
        try:
            with ThreadPoolExecutor(at_once) as pool:  # new threads, which take over the setting
                return list(pool.map(one, items))
        finally:
            torch.set_num_threads(threads)


def method_for_a_thread(method: Method) -> Method:
    """A module serves one thread at a time, so every thread has its own method and network; frozen
    parameters are shared."""
    frozen = list(chain.from_iterable(map(nn.Module.parameters, method.net.frozen)))
    return copy.deepcopy(method, dict(zip(map(id, frozen), frozen, strict=True)))
