"""Whatever a user hands over, a command succeeds or says in a line or two what is wrong: no
traceback, no hang.

The cases are the same each time. Longer, with others: FEDMES_FUZZ=20 python -m pytest
tests/cli/test_fuzz_*.py
"""

import os
import signal
import warnings
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

from fedmes.errors import UserError
from helpers.waiting import HANGS

LONGER = int(os.environ.get("FEDMES_FUZZ", "0"))


def cases(count):
    return settings(
        max_examples=count * max(1, LONGER),
        derandomize=not LONGER,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def well_behaved():
    """A user error is fine if it can be read; anything else is not."""

    def stop(*_):
        raise TimeoutError(f"still busy after {HANGS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError as error:
        assert 1 <= len(str(error).strip().splitlines()) <= 2, error
        assert len(str(error)) < 2000, error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
