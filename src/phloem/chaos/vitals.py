"""What a process has: memory, descriptors, and how its memory grows. Linux only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MB = 1e6
MINUTE_S = 60.0


def resident_mb(pid: int) -> float:
    """Resident memory (MB). Raises OSError for a process that is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / MB


def descriptors(pid: int) -> int:
    """How many it has open. Raises OSError for a process that is gone."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    """Processes that it has started and that still run; none of one that is gone."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            continue  # a thread that has ended
    return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through ``points`` (x, y) with the least squares; 0 for points without extent."""
    if not points:
        return 0.0
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
