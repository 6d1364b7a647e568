"""Who owns each KV page of a worker: nobody (free), a request (held), or the tree.

Every transfer is checked for every page, so a page freed twice or given to two owners stops the service at the step that did it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .extents import Extent, Extents

FREE, HELD, TREE = 0, 1, 2
_BYTE = (b"\x00", b"\x01", b"\x02")  # each owner as it lies in memory


class OutOfPages(Exception):
    """Raised when more pages are taken than are free. Ask `free` first."""


class PagePool:
    """Hands out page ids `first` to `first + count - 1`, neighbours together where it can."""

    def __init__(self, count: int, first: int = 0) -> None:
        if count < 1:
            raise ValueError(f"count: a pool needs at least 1 page, not {count}")
        self.total = count
        self.held = 0  # owned by requests
        self.in_tree = 0
        self._first = first
        self._owner = bytearray(count)
        self._free = Extents()
        self._free.add(first, first + count)

    @property
    def free(self) -> int:
        """Pages that `take` can hand out now."""
        return self._free.pages

    def take(self, count: int, after: int | None = None) -> array[int]:
        """Give `count` free pages to a request, in as few runs of ascending neighbours as there can be.

        after: the page that the request's table ends with. If the next one is free, the new pages begin there, so that the table's last run
        grows; the rest comes from elsewhere. Raises OutOfPages, and takes none, if fewer than `count` are free.
        """
        if count > self._free.pages:
            raise OutOfPages(f"{count} pages asked for, {self._free.pages} free")
        pages = array("I")
        if count <= 0:
            return pages
        for start, end in self._free.take(count, None if after is None else after + 1):
            self._move(start, end, FREE, HELD)
            if end - start == 1:  # most calls: a row that decodes
                pages.append(start)
            else:
                pages.extend(range(start, end))
        self.held += count
        return pages

    def give_back(self, pages: array[int]) -> None:
        """A request's pages become free."""
        self._release(pages, HELD)
        self.held -= len(pages)

    def to_tree(self, pages: array[int]) -> None:
        """A request's pages become the tree's."""
        for start, end in _runs(pages):
            self._move(start, end, HELD, TREE)
        self.held -= len(pages)
        self.in_tree += len(pages)

    def from_tree(self, pages: array[int]) -> None:
        """Pages the tree gave up become free."""
        self._release(pages, TREE)
        self.in_tree -= len(pages)

    def _release(self, pages: array[int], owner: int) -> None:
        for start, end in _runs(pages):
            self._move(start, end, owner, FREE)
            self._free.add(start, end)

    def _move(self, start: int, end: int, old: int, new: int) -> None:
        """Pages `[start, end)` go from one owner to another; all of them must be the pool's, and be the old owner's."""
        at, count, owner = start - self._first, end - start, self._owner
        assert 0 <= at < self.total, f"page {start} is not of this pool"
        if count == 1:
            assert owner[at] == old, f"page {start} is in state {owner[at]}, not {old}"
            owner[at] = new
        else:
            assert owner.startswith(_BYTE[old] * count, at), (
                f"of pages {start} to {end - 1}, not all are in state {old}"
            )
            owner[at : at + count] = _BYTE[new] * count

    def check(self) -> None:
        """Raise AssertionError unless free + held + tree pages are exactly all pages. Linear in the number of pages."""
        counts = (self._owner.count(FREE), self._owner.count(HELD), self._owner.count(TREE))
        assert counts == (self._free.pages, self.held, self.in_tree)
        self._free.check()
        for start, end in self._free:
            self._move(start, end, FREE, FREE)  # moves nothing, but fails unless all are free and the pool's


def _runs(pages: array[int]) -> Iterator[Extent]:
    """Cut pages, in their order, into runs of ascending neighbours."""
    if not pages:
        return
    start = end = pages[0]
    for page in pages:
        if page != end:
            yield start, end
            start = end = page
        end += 1
    yield start, end
