"""A program: becomes the command in its arguments, tied to its parent.

Linux ends the process when the thread that started it is gone, be it by kill -9. The first argument
is the parent's process id, by which a parent is noticed that was gone before.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):
        os.execv(sys.argv[2], sys.argv[2:])
