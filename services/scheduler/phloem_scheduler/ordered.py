"""A sorted collection that has no bad moments: adding, removing and finding the first cost a bisection each, and nothing is ever put off.

Entries stand in sorted blocks of a few hundred. Unlike a heap with entries that no longer count, there is nothing to skip and nothing to
clean up, so no single call takes long however many entries there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

# Moving this many pointers along takes less time than finding the place among them.
MOST_IN_BLOCK = 512


class Ordered(Generic[Entry]):
    """Tuples, all different, smallest first."""

    __slots__ = ("_blocks", "_last")

    def __init__(self) -> None:
        self._blocks: list[list[Entry]] = []  # none of them empty
        self._last: list[Entry] = []  # of each block

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, entry: Entry) -> None:
        """entry is not there yet."""
        blocks, last = self._blocks, self._last
        if not blocks:
            blocks.append([entry])
            last.append(entry)
            return
        at = bisect_left(last, entry)
        if at == len(last):
            at -= 1
            last[at] = entry
            blocks[at].append(entry)
        else:
            block = blocks[at]
            block.insert(bisect_left(block, entry), entry)
        if len(blocks[at]) > MOST_IN_BLOCK:
            self._halve(at)

    def remove(self, entry: Entry) -> None:
        """entry, the very tuple that was added, goes."""
        blocks, last = self._blocks, self._last
        at = place = 0
        block = blocks[0]
        if block[0] is not entry:  # mostly it is: whoever is picked or evicted was the first
            at = bisect_left(last, entry)
            assert at < len(last)
            block = blocks[at]
            place = bisect_left(block, entry)
            assert block[place] is entry
        del block[place]
        if not block:
            del blocks[at], last[at]
        elif place == len(block):
            last[at] = block[-1]

    def first(self) -> Entry:
        """The smallest; it stays. There must be one."""
        return self._blocks[0][0]

    def _halve(self, at: int) -> None:
        block = self._blocks[at]
        half = len(block) // 2
        self._blocks[at : at + 1] = [block[:half], block[half:]]
        self._last.insert(at, block[half - 1])

    def __iter__(self) -> Iterator[Entry]:
        """All of them, in order."""
        for block in self._blocks:
            yield from block
