"""Run as a script between the supervisor and a service: dies with its parent, is nice, and becomes the service.

    python launcher.py PARENT_PID NICE PROGRAM ARGUMENT...

It imports next to nothing, so that it costs some milliseconds, and it replaces itself, so that pid and signals are the service's own.
(Doing the same between fork and exec in the supervisor is not safe once that has threads.)
"""

from __future__ import annotations

import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # prctl(2)
AUTOGROUP = "/proc/self/autogroup"  # sched(7)
TRIES, PAUSE_S = 20, 0.11  # of all but root, the kernel takes one change in 0.1 s
NOT_EXECUTABLE = 126  # as shells say it


def die_with_parent(parent: int) -> None:
    """Have the kernel kill us when the supervisor dies without a word, where it can (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def give_way(nice: int) -> None:
    """Be nice, with the session: each service has its own, and where the kernel gives sessions equal shares, niceness counts within one."""
    level = os.nice(nice)
    for _ in range(TRIES):
        try:
            group = os.open(AUTOGROUP, os.O_WRONLY)
        except OSError:
            return  # no such shares here
        try:
            os.write(group, str(level).encode())
            return
        except BlockingIOError:
            time.sleep(PAUSE_S)
        except OSError:
            return
        finally:
            os.close(group)


def main() -> None:
    parent, nice, *command = sys.argv[1:]
    die_with_parent(int(parent))
    if int(nice) > 0:
        give_way(int(nice))
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        sys.exit(NOT_EXECUTABLE)


if __name__ == "__main__":
    main()
