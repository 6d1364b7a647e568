"""A set of page ids kept as extents: maximal runs `[start, end)` of neighbouring ids, found by length and by either end.

Extents of one length share a class, and a sorted list holds the lengths there are. Lengths that differ must add up, so n pages have fewer than
sqrt(2n) of them (1414 for a million pages): a search is one bisection of a short list, however many extents there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

Extent = tuple[int, int]  # first page, one past the last


class Extents:
    """Starts empty. Equal calls in equal order give equal answers."""

    def __init__(self) -> None:
        self.pages = 0  # in all extents together
        self._end: dict[int, int] = {}  # by start
        self._start: dict[int, int] = {}  # by end
        self._classes: dict[int, dict[int, None]] = {}  # by length: starts, the newest extent last
        self._lengths: list[int] = []  # those that have a class, sorted

    def add(self, start: int, end: int) -> None:
        """Put in the pages `[start, end)`, none of which may be in the set, and merge them with their neighbours."""
        self.pages += end - start
        left = self._start.pop(start, None)
        if left is not None:
            self._unlist(left, start - left)
            start = left
        right = self._end.pop(end, None)
        if right is not None:
            self._unlist(end, right - end)
            end = right
        self._end[start] = end
        self._start[end] = start
        self._list(start, end - start)

    def take(self, count: int, at: int | None = None) -> list[Extent]:
        """Remove `count` pages, which must be there, and return them as runs, in the order they are to be used.

        An extent that starts with page `at` is used first. The others come from the shortest extent that is long enough; while none is, from
        the longest. So the runs are as few as they can be, and long extents are only broken where no shorter one serves.
        """
        runs: list[Extent] = []
        self.pages -= count
        start, end = (None, None) if at is None else (at, self._end.get(at))
        while count > 0:
            if start is None or end is None:
                start, end = self._newest(count)
            else:
                self._unlist(start, end - start)
            del self._end[start]
            cut = start + count
            if cut < end:
                self._end[cut] = end
                self._start[end] = cut
                self._list(cut, end - cut)
            else:
                cut = end
                del self._start[end]
            runs.append((start, cut))
            count -= cut - start
            end = None
        return runs

    def check(self) -> None:
        """Raise AssertionError if the indices contradict each other or two extents touch. Linear in the number of extents."""
        assert {end: start for start, end in self._end.items()} == self._start
        assert all(start < end and end not in self._end for start, end in self._end.items())
        assert self.pages == sum(end - start for start, end in self._end.items())
        listed = {start: start + length for length, starts in self._classes.items() for start in starts}
        assert listed == self._end
        assert self._lengths == sorted(self._classes)
        assert all(self._classes.values())

    def __iter__(self) -> Iterator[Extent]:
        """The extents, in no promised order."""
        return iter(self._end.items())

    def _newest(self, count: int) -> Extent:
        """Take out of its class the newest of the shortest extents with `count` pages or more; if none has as many, of the longest."""
        fit = bisect_left(self._lengths, count)
        if fit == len(self._lengths):
            fit -= 1
        length = self._lengths[fit]
        starts = self._classes[length]
        # Unlike a look at the last key, popitem never walks over the same deleted entries twice.
        start, _ = starts.popitem()
        if not starts:
            del self._classes[length], self._lengths[fit]
        return start, start + length

    def _list(self, start: int, length: int) -> None:
        starts = self._classes.get(length)
        if starts is None:
            self._classes[length] = {start: None}
            insort(self._lengths, length)
        else:
            starts[start] = None

    def _unlist(self, start: int, length: int) -> None:
        starts = self._classes[length]
        del starts[start]
        if not starts:
            del self._classes[length], self._lengths[bisect_left(self._lengths, length)]
