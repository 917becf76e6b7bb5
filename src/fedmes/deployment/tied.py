"""A program: becomes the command in its arguments, tied to its parent.

Linux ends the process when the thread that started it is gone, be it by kill -9. The first argument
is the parent's process id, by which a parent is noticed that was gone before; the second, how far
the command gives way to others.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
TRIES = 20  # Linux takes a group's priority ten times a second, from all users together


def give_way(niceness: int) -> None:
    """To every process outside of this session, too: Linux shares the cores out among sessions
    first, where it groups them, and looks at processes only within each."""
    os.nice(niceness)
    for _ in range(TRIES):
        try:
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(niceness))
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return  # it groups no sessions
        else:
            return


if __name__ == "__main__":
    parent, niceness, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):
        if niceness != "0":
            give_way(int(niceness))
        os.execv(command[0], command)
