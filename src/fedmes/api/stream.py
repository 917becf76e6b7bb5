"""A run as a loop over its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from queue import Queue
from threading import Semaphore, Thread
from typing import TYPE_CHECKING

from fedmes.api.result import Result
from fedmes.api.runs import Place, run
from fedmes.config.signature import with_options
from fedmes.experiment.recorder import Progress

if TYPE_CHECKING:
    from typing import Unpack

    from fedmes.config.keywords import Options


@with_options
def stream(
    config_file: Place | None = None,
    *,
    out: Place | None = None,
    resume: bool = False,
    again: bool = False,
    trust: bool = False,
    **options: Unpack[Options],
) -> Steps:
    """Run an experiment round by round: `for step in fedmes.stream(...)`, a `Progress` for each
    round. The next round begins when it is asked for; `Steps.result` is the result."""
    how = {"out": out, "resume": resume, "again": again, "trust": trust}
    return Steps(partial(run, config_file, bar=False, **how, **options))  # type: ignore[arg-type]


class Steps(Iterator[Progress]):
    """The rounds of a run. Training waits in a thread of its own while nobody asks for more."""

    def __init__(self, work: Callable[..., Result]) -> None:
        self._work = work
        self._steps: Queue[Progress | None] = Queue()  # None: there are no more
        self._go_on = Semaphore(0)
        self._thread = Thread(target=self._train, daemon=True)
        self._now: Progress | None = None
        self._over = False
        self._result: Result | None = None
        self._error: BaseException | None = None

    def __next__(self) -> Progress:
        if self._over:
            raise StopIteration
        if self._now is None:
            self._thread.start()
        else:
            self._go_on.release()
        self._now = self._steps.get()
        if self._now is not None:
            return self._now
        self._over = True
        self._thread.join()
        if self._error is not None:
            raise self._error
        raise StopIteration

    @property
    def result(self) -> Result:
        """The result, when the loop is over. If it was left before, the run ends after that round,
        as with `Progress.stop`."""
        if self._now is not None:
            self._now.stop("the loop was left")
        for _ in self:  # a loop that has not begun runs to its end
            pass
        if self._result is None:
            raise self._error or RuntimeError("the run has no result")
        return self._result

    def _train(self) -> None:
        try:
            self._result = self._work(on_progress=self._step)
        except BaseException as error:  # raised where the loop is
            self._error = error
        finally:
            self._steps.put(None)

    def _step(self, now: Progress) -> None:
        self._steps.put(now)
        self._go_on.acquire()
