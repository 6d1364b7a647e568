"""Which cores this process may use, and how many threads should compute on them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Cores:
    """``usable``: logical cores that we may run on, ascending; ``whole``: one of each physical core among them."""

    usable: tuple[int, ...]
    whole: tuple[int, ...]
    quota: float | None
    """Cores' worth of time that the container may use; None = no limit."""

    @property
    def threads(self) -> int:
        """How many threads compute best: one per physical core, and no more than may run at once."""
        most = len(self.whole)
        return max(1, most if self.quota is None else min(most, math.floor(self.quota)))

    @property
    def reason(self) -> str:
        """Why so many, for people."""
        shared = "" if len(self.whole) == len(self.usable) else f" ({len(self.usable)} with their siblings)"
        limit = "" if self.quota is None else f", time for {self.quota:g} of them"
        return f"{len(self.whole)} cores{shared}{limit}"


def find_cores(read: Callable[[Path], str] = lambda path: path.read_text(encoding="ascii")) -> Cores:
    """What the system says. ``read`` raises ``OSError`` for a file that is not there."""
    usable = tuple(sorted(os.sched_getaffinity(0)))
    return Cores(usable, _one_of_each(usable, read), _quota(read))


def _one_of_each(usable: Iterable[int], read: Callable[[Path], str]) -> tuple[int, ...]:
    """The first usable one of each set of siblings."""
    whole: list[int] = []
    seen: set[int] = set()
    for core in usable:
        try:
            siblings = set(parse_cores(read(Path(_TOPOLOGY.format(core=core)))))
        except (OSError, ValueError):
            siblings = {core}
        if not siblings & seen:
            whole.append(core)
        seen |= siblings | {core}
    return tuple(whole)


def _quota(read: Callable[[Path], str]) -> float | None:
    try:
        limit, period = read(_QUOTA).split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def parse_cores(text: str) -> tuple[int, ...]:
    """``0-3,8`` -> (0, 1, 2, 3, 8). Raises ``ValueError`` for anything else."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise ValueError(f"not a list of cores: {text.strip()!r}")
        begin, end = int(first), int(last) if dash else int(first)
        if end < begin or end - begin >= MOST_THREADS:
            raise ValueError(f"not a range of cores: {part!r}")
        cores += range(begin, end + 1)
    if len(set(cores)) != len(cores):
        raise ValueError(f"a core is there twice: {text.strip()!r}")
    return tuple(cores)
