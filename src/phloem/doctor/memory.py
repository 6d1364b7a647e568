"""Memory, and how it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from phloem_gpu_worker.memory import SHARE, Free, free_memory

from .finding import Finding, error, ok, warning

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GIB = 2**30
TIGHT, TOO_LITTLE = 2 * GIB, GIB // 2
"""What the default model, torch and four services are comfortable with; and what torch and the default model alone take."""


def findings() -> Iterator[Finding]:
    """What is free, and large pages."""
    yield free(free_memory())
    yield large_pages()


def free(found: Free | None) -> Finding:
    if found is None:
        return ok("memory", "nobody says how much is free; --kv-memory-gb sets the size of the KV pool")
    text = f"{found.bytes / GIB:.1f} GiB {found.source}; KV takes {SHARE:.0%} of what the weights leave, unless --kv-memory-gb is set"
    if found.bytes < TOO_LITTLE:
        return error("memory", f"{text}: not enough for torch and a model", "free some, or raise the container's limit")
    if found.bytes < TIGHT:
        return warning("memory", f"{text}: enough for a small model only", "free some, or raise the container's limit")
    return ok("memory", text)


def large_pages(read: Callable[[Path], str] = lambda path: path.read_text(encoding="ascii")) -> Finding:
    """read: raises ``OSError`` for a file that is not there."""
    try:
        chosen = read(LARGE_PAGES).partition("[")[2].partition("]")[0]
    except (OSError, ValueError):
        return ok("large pages", "this system has no transparent ones")
    if chosen == "never":
        return warning(
            "large pages",
            "transparent ones are off: weights are read through many small pages",
            f"echo madvise > {LARGE_PAGES}",
        )
    return ok("large pages", f"transparent ones: {chosen}; weights ask for them")
