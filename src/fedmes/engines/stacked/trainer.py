"""The lanes of a device, side by side: made ready, loaded and trained together."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from fedmes.common.progress import meanwhile
from fedmes.engines.base import COMPILING
from fedmes.engines.stacked.lanes import Lane, LanePlan
from fedmes.errors import first_line


class Trainer:
    """One lane on a GPU; on a CPU one per thread."""

    def __init__(self, lanes: list[Lane], compiled: bool, steps: float, notes: list[str]) -> None:
        """`steps`: of a lane in the run; `notes`: for what the user should know."""
        self.lanes = lanes
        self.seconds = 0.0  # that steps took to compile or to record
        self._compiled = compiled
        self._steps = steps
        self._notes = notes
        self._ready = False
        self._crew = ThreadPoolExecutor(len(lanes))

    def load(self, plans: list[LanePlan]) -> None:
        """Send a wave's tables to the device. The first time, steps are made ready, too: other
        parts of a round need the same kernels, which are compiled several at a time here."""
        for lane, plan in zip(self.lanes, plans, strict=True):
            lane.load(plan.tables)
        if not self._ready:
            with self._one_thread_each():
                self._prepare()

    def train(self, plans: list[LanePlan]) -> None:
        tables = [plan.timetable for plan in plans]
        with self._one_thread_each():
            if len(self.lanes) == 1:
                self.lanes[0].train(tables[0])
            else:
                list(self._crew.map(Lane.train, self.lanes, tables))

    def _prepare(self) -> None:
        start = time.perf_counter()
        if self._compiled:
            meanwhile.info(COMPILING)
        try:
            for lane in self.lanes:
                lane.prepare(self._compiled, self._steps)
        except Exception as error:  # compilers fail in many ways; the run continues without
            what = "compilation" if self._compiled else "recording"
            reason = f"{type(error).__name__}: {first_line(error)}"
            note = f"{what} failed, steps run without it ({reason})"
            self._notes.append(note)
            warnings.warn(note, RuntimeWarning, stacklevel=2)
            for lane in self.lanes:
                lane.advance = lane.step
        self.seconds = time.perf_counter() - start
        self._ready = True

    @contextmanager
    def _one_thread_each(self) -> Iterator[None]:
        """If there are several lanes."""
        threads = torch.get_num_threads()
        if len(self.lanes) > 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
