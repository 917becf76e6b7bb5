"""Waiting for other processes. A limit only ends what hangs: a busy machine may be many times
slower than one's own."""

import time

HANGS = 1200  # seconds after which something that should have happened will not


def until(happened, what):
    """What `happened` returns, as soon as that is true."""
    limit = time.monotonic() + HANGS
    while not (found := happened()):
        assert time.monotonic() < limit, f"{what}: not in {HANGS} s"
        time.sleep(0.02)
    return found
