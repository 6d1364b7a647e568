"""A job's own process: forked from the fork server, limited, never to return.

Everything here runs between fork and ``_exit``. Limits are set above what this process has at that moment, since it inherits its parent's
memory (and a limit below that would fail at once).
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import time
from pathlib import Path
from typing import NoReturn

from .engine import Compiled, Engine, Task, attempt
from .sandbox_wire import JobLimits, pack

STDERR_MAX = 64 * 1024
"""Bytes a job may write to its stderr (or any file): enough for an engine's last words."""
_PAGE = resource.getpagesize()
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def run_job(
    engine: Engine, task: Task, limits: JobLimits, *, priority: str, parent: int, result_fd: int, output_fd: int
) -> NoReturn:
    """Compile in this (just forked) process, write one frame with the outcome to ``result_fd``, and exit."""
    status = 1
    try:
        _detach(parent, result_fd, output_fd)
        _lower(priority)
        baseline = resident_bytes(os.getpid())
        _limit(limits)
        outcome = attempt(engine, task)
        if isinstance(outcome, Compiled):
            grown = max(0, _peak_bytes() - baseline)
            outcome = Compiled(outcome.source, outcome.compile_ms, outcome.first_mask_ms, outcome.mask_ms, grown)
        _write_all(result_fd, pack(outcome))
        status = 0
    finally:
        os._exit(status)


def _detach(parent: int, result_fd: int, output_fd: int) -> None:
    """Die with the parent; keep no descriptor of it but the result pipe; what libraries print goes to ``output_fd``."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and fd != result_fd:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor
                pass


def _lower(priority: str) -> None:
    if priority == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif priority == "nice":
        os.nice(19)


def _limit(limits: JobLimits) -> None:
    """RLIMIT_CPU counts whole seconds; the fork server watches the fractions."""
    used = time.process_time()
    seconds = math.ceil(used + limits.cpu_s)
    _lower_limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower_limit(resource.RLIMIT_AS, _address_bytes() + limits.memory_bytes)
    _lower_limit(resource.RLIMIT_FSIZE, STDERR_MAX)
    _lower_limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _lower_limit(which: int, soft: int, hard: int | None = None) -> None:
    """Set both limits, never above the hard limit that the process has already."""
    hard = soft if hard is None else hard
    ceiling = resource.getrlimit(which)[1]
    if ceiling != resource.RLIM_INFINITY:
        hard = min(hard, ceiling)
    resource.setrlimit(which, (min(soft, hard), hard))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, 0 when it is gone."""
    return _statm(pid, 1)


def _address_bytes() -> int:
    return _statm(os.getpid(), 0)


def _statm(pid: int, column: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[column]) * _PAGE
    except (OSError, IndexError):
        return 0


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
