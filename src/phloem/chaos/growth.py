"""How the memory of processes grows: samples by process, and what they say. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .vitals import MINUTE_S, slope

WINDOW = 0.8
"""The last part of a run, over which growth counts: what is filled once has been filled before."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A process that lived through the run, over the window. MB, and MB per minute."""

    name: str
    pid: int
    first_mb: float
    last_mb: float
    slope: float


@dataclass(slots=True)
class Growth:
    """Samples of a run: (time in seconds, resident MB) by name and pid."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, now: float, name: str, pid: int, resident_mb: float) -> None:
        """One more."""
        self.samples[name, pid].append((now, resident_mb))

    def lived_through(self) -> list[Grown]:
        """Of each process that was there from the first look to the last."""
        if not self.samples:
            return []
        times = sorted({now for points in self.samples.values() for now, _ in points})
        begin = times[-1] - WINDOW * (times[-1] - times[0])
        found = []
        for (name, pid), points in self.samples.items():
            if points[0][0] == times[0] and points[-1][0] == times[-1]:
                window = [point for point in points if point[0] >= begin]
                found.append(Grown(name, pid, window[0][1], window[-1][1], MINUTE_S * slope(window)))
        return found

    def others(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Of those that were killed or started meanwhile: by name, the most that each of its processes had (MB)."""
        known = {(one.name, one.pid) for one in self.lived_through()}
        most: dict[str, list[float]] = defaultdict(list)
        for key, points in self.samples.items():
            if key not in known:
                most[key[0]].append(max(mb for _, mb in points))
        yield from most.items()
