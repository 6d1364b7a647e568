"""CPU time of other processes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

from ..hardware.neighbours import STAT, busy_s

_SYSTEM = 12
"""Field of /proc/PID/stat behind the name: stime."""


class NotReadable(OSError):
    """Raised when a process's CPU time can't be read: it has ended, or the system has no such clock."""


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that process ``pid`` has used, with all its threads, those that have ended too."""
    clock = ctypes.c_int32()
    try:
        trouble = ctypes.CDLL(None).clock_getcpuclockid(ctypes.c_int(pid), ctypes.byref(clock))
    except AttributeError:
        raise NotReadable("this system has no CPU clocks of processes (clock_getcpuclockid)") from None
    if trouble:
        raise NotReadable(f"the CPU time of process {pid} can't be read: {os.strerror(trouble)}")
    return time.clock_gettime(clock.value)


def system_s(pid: int) -> float:
    """Seconds of it in the kernel, to a hundredth: system calls, most of them on sockets. Raises `NotReadable`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError as error:
        raise NotReadable(f"the CPU time of process {pid} can't be read: {error.strerror}") from None
    return int(fields[_SYSTEM]) / os.sysconf("SC_CLK_TCK")


class Usage:
    """What processes have used by now, and how busy the cores that we may run on have been.

    Raises:
        NotReadable: one of them has ended.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.at = time.perf_counter()
        self.cpu_s = {name: cpu_s(pid) for name, pid in pids.items()}
        self.system_s = {name: system_s(pid) for name, pid in pids.items()}
        self.busy_s = busy_s(Path(STAT).read_text(encoding="ascii"), os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"))


def between(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """What was added to each."""
    return {name: now - earlier[name] for name, now in later.items()}
