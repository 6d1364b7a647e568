"""How much memory there is for KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
SHARE = 0.5
"""Of what is free once the weights are loaded: the rest is for the step's own arrays and for whoever else runs here."""


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that this process could still take, and who says so."""

    bytes: int
    source: str


def free_memory(read: Callable[[Path], str] = lambda path: path.read_text(encoding="ascii")) -> Free | None:
    """The system's available memory, or what the container's limit leaves of it; None where neither can be read."""
    found = [free for free in (_system(read), _container(read)) if free is not None]
    return min(found, key=lambda free: free.bytes, default=None)


def _system(read: Callable[[Path], str]) -> Free | None:
    try:
        fields = dict(line.split(":", 1) for line in read(_MEMINFO).splitlines() if ":" in line)
        return Free(int(fields["MemAvailable"].split()[0]) * 1024, "available on this machine")
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _container(read: Callable[[Path], str]) -> Free | None:
    try:
        return Free(max(0, int(read(_LIMIT)) - int(read(_USED))), "left to this container")
    except (OSError, ValueError):  # "max" is no number
        return None
