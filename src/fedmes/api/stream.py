"""A run as a loop over its rounds."""

from __future__ import annotations

import weakref
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

LEFT = "the loop was left"


@with_options
def stream(
    config_file: Place | None = None,
    *,
    out: Place | None = None,
    resume: bool = False,
    again: bool = False,
    trust: bool = False,
    bar: bool = False,
    **options: Unpack[Options],
) -> Steps:
    """Run an experiment round by round: `for step in fedmes.stream(...)`, a `Progress` for each
    round. The next round begins when it is asked for; `Steps.result` is the result. A loop that is
    left ends the run after its round, as `Progress.stop` does."""
    how = {"out": out, "resume": resume, "again": again, "trust": trust, "bar": bar}
    return Steps(partial(run, config_file, **how, **options))  # type: ignore[arg-type]


class Steps(Iterator[Progress]):
    """The rounds of a run. Training waits in a thread of its own while nobody asks for more."""

    def __init__(self, work: Callable[..., Result]) -> None:
        self._training = _Training(work)
        self._now: Progress | None = None
        self._over = False
        # when nobody has these steps any more, as after a `break`, nobody will ask for the next one
        weakref.finalize(self, self._training.leave).atexit = False

    def __next__(self) -> Progress:
        if self._over:
            raise StopIteration
        self._now = self._training.next(self._now)
        if self._now is not None:
            return self._now
        self._over = True
        self._training.thread.join()
        if self._training.error is not None:
            raise self._training.error
        raise StopIteration

    @property
    def result(self) -> Result:
        """The result, when the loop is over. If it was left before, the run ends after that round,
        as with `Progress.stop`."""
        if self._now is not None:
            self._now.stop(LEFT)
        for _ in self:  # a loop that has not begun runs to its end
            pass
        if self._training.result is None:
            raise self._training.error or RuntimeError("the run has no result")
        return self._training.result


class _Training:
    """The run, in its thread. It does not know the steps, so that these can be given up."""

    def __init__(self, work: Callable[..., Result]) -> None:
        self.thread = Thread(target=self._train, args=(work,), daemon=True)
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._steps: Queue[Progress | None] = Queue()  # None: there are no more
        self._go_on = Semaphore(0)
        self._left = False

    def next(self, now: Progress | None) -> Progress | None:
        """The round after this one, or the first."""
        if now is None:
            self.thread.start()
        else:
            self._go_on.release()
        return self._steps.get()

    def leave(self) -> None:
        self._left = True
        self._go_on.release()

    def _train(self, work: Callable[..., Result]) -> None:
        try:
            self.result = work(on_progress=self._step)
        except BaseException as error:  # raised where the loop is
            self.error = error
        finally:
            self._steps.put(None)

    def _step(self, now: Progress) -> None:
        self._steps.put(now)
        self._go_on.acquire()
        if self._left:
            now.stop(LEFT)
