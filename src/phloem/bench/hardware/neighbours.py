"""Whether anybody else computes meanwhile: figures from a machine that is not quiet say little."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

STAT = "/proc/stat"
QUIET = 0.1
"""Cores' worth of time that others may use."""
_IDLE = (3, 4)
"""Fields of a line of `STAT` in which a core did nothing: idle, waiting for a disk. The last two repeat what is in the first two."""
_FIELDS = 8


def busy_s(text: str, cores: Iterable[int], ticks: int) -> float:
    """Seconds that ``cores`` have been busy since the system started, by whatever: ``text`` of `STAT`, with ``ticks`` per second."""
    wanted = {f"cpu{core}" for core in cores}
    total = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name in wanted:
            total += sum(int(field) for at, field in enumerate(fields[:_FIELDS]) if at not in _IDLE)
    return total / ticks


def _read() -> str:
    with open(STAT, encoding="ascii") as file:
        return file.read()


class Neighbours:
    """Watches the cores that we may run on, from now.

    Args:
        read: the text of `STAT`; raises ``OSError`` where there is none.
        own_s: CPU time that this process has used.
        now: a clock.
    """

    def __init__(
        self,
        read: Callable[[], str] = _read,
        own_s: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read = read
        self._own_s = own_s
        self._now = now
        self._began = self._look()

    def cores(self) -> float | None:
        """Cores' worth of time that others have used since; None where nobody says."""
        ended = self._look()
        if self._began is None or ended is None:
            return None
        busy, own, wall = (after - before for before, after in zip(self._began, ended, strict=True))
        return max(0.0, (busy - own) / wall) if wall > 0 else None

    def _look(self) -> tuple[float, float, float] | None:
        try:
            busy = busy_s(self._read(), os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            return None
        return busy, self._own_s(), self._now()
