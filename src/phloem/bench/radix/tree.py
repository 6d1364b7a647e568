"""What the tree costs: matching, locking, entering, splitting, evicting."""

from __future__ import annotations

import random

from phloem_scheduler.node import TOKEN_BYTES, Node

from .bed import NAMESPACE, Bed
from .clock import Clock, Figure, Stopwatch
from .prompts import Prompts

MATCH_TOKENS = (256, 1024, 4096, 16_384)
LOCKED_TOKENS = 4096
LONG_PROMPTS = 4
"""Cached prompts of each of those lengths."""
BULK_PAGES = 64


class TreeTimes:
    """Stopwatches of the tree's operations."""

    def __init__(self, clock: Clock) -> None:
        self.match = {tokens: Stopwatch(clock) for tokens in MATCH_TOKENS}
        self.lock = Stopwatch(clock)
        self.insert = Stopwatch(clock)
        self.split = Stopwatch(clock)
        self.evict = Stopwatch(clock)
        self.evict_bulk = Stopwatch(clock)

    def figures(self) -> dict[str, Figure | None]:
        """By operation."""
        return {
            **{f"match_{tokens}": stopwatch.figure() for tokens, stopwatch in self.match.items()},
            "lock": self.lock.figure(),
            "insert": self.insert.figure(),
            "split": self.split.figure(),
            "evict_page": self.evict.figure(),
            "evict_page_in_bulk": self.evict_bulk.figure(parts=BULK_PAGES),
        }


def fill(bed: Bed, prompts: Prompts, count: int, times: TreeTimes, timed: int) -> list[bytes]:
    """Cache ``count`` prompts, of which the last ``timed`` are timed; returns them."""
    cached = [prompts.draw() for _ in range(count)]
    for at, prompt in enumerate(cached):
        bed.store(prompt, times.insert if at >= count - timed else None)
    return cached


def matches(bed: Bed, prompts: Prompts, times: TreeTimes, repeat: int) -> None:
    """Find cached prompts of several lengths; lock and release the paths of some. They stay in the tree."""
    for tokens, stopwatch in times.match.items():
        cached = [bed.whole_pages(prompts.long(tokens)) for _ in range(LONG_PROMPTS)]
        nodes = [bed.store(prompt) for prompt in cached]
        for at in range(repeat):
            key = cached[at % LONG_PROMPTS]
            _, pages = stopwatch.time(bed.tree.find, NAMESPACE, key, bed.cache.shelf)
            assert pages * bed.page_size * TOKEN_BYTES == len(key)
            if tokens == LOCKED_TOKENS:
                times.lock.time(_lock_and_release, bed, nodes[at % LONG_PROMPTS])


def _lock_and_release(bed: Bed, node: Node) -> None:
    bed.cache.release(bed.cache.acquire(node).node)


def splits(bed: Bed, cached: list[bytes], times: TreeTimes, rng: random.Random) -> None:
    """Want prompts that part from cached ones in the last page of these, so that an edge has to be cut."""
    unit = bed.page_size * TOKEN_BYTES
    for prompt in cached:
        key = bed.whole_pages(prompt)
        before = bed.tree.size
        node = times.split.time(bed.tree.want, NAMESPACE, key[: len(key) - unit] + rng.randbytes(unit))
        assert bed.tree.size == before + 2, "one more for the cut, one for what differs"
        bed.tree.unwant(node)


def evictions(bed: Bed, times: TreeTimes, repeat: int) -> None:
    """Free single pages, then runs of them, while there are any."""
    for _ in range(repeat):
        if bed.cache.shelf.evictable_pages < 2 * BULK_PAGES:
            break
        times.evict.time(bed.cache.evict, 1)
    for _ in range(repeat):
        if bed.cache.shelf.evictable_pages < BULK_PAGES:
            break
        times.evict_bulk.time(bed.cache.evict, BULK_PAGES)
