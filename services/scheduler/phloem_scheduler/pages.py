"""Who owns each KV page of a worker: nobody (free), a request (held), or the tree.

Every transfer is checked page by page, so a page freed twice or given to two owners stops the service at the step that did it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

FREE, HELD, TREE = 0, 1, 2


class OutOfPages(Exception):
    """Raised when more pages are taken than are free. Ask `free` first."""


class PagePool:
    """Hands out page ids `first` to `first + count - 1`."""

    def __init__(self, count: int, first: int = 0) -> None:
        if count < 1:
            raise ValueError(f"count: a pool needs at least 1 page, not {count}")
        self.total = count
        self.held = 0  # owned by requests
        self.in_tree = 0
        self._first = first
        self._owner = bytearray(count)
        # The page freed last is used first: it is the one most likely still in a cache of the device. Starts so that page `first` goes first.
        self._free = array("I", range(first + count - 1, first - 1, -1))

    @property
    def free(self) -> int:
        """Pages that `take` can hand out now."""
        return len(self._free)

    def take(self, count: int) -> array[int]:
        """Give `count` free pages to a request. Raises OutOfPages, and takes none, if fewer are free."""
        if count > len(self._free):
            raise OutOfPages(f"{count} pages asked for, {len(self._free)} free")
        if count <= 0:
            return array("I")
        pages = self._free[-count:]
        pages.reverse()
        del self._free[-count:]
        self._move(pages, FREE, HELD)
        self.held += count
        return pages

    def give_back(self, pages: array[int]) -> None:
        """A request's pages become free."""
        self._move(pages, HELD, FREE)
        self.held -= len(pages)
        self._free.extend(pages)

    def to_tree(self, pages: array[int]) -> None:
        """A request's pages become the tree's."""
        self._move(pages, HELD, TREE)
        self.held -= len(pages)
        self.in_tree += len(pages)

    def from_tree(self, pages: array[int]) -> None:
        """Pages the tree gave up become free."""
        self._move(pages, TREE, FREE)
        self.in_tree -= len(pages)
        self._free.extend(pages)

    def _move(self, pages: Iterable[int], old: int, new: int) -> None:
        owner, first = self._owner, self._first
        for page in pages:
            assert owner[page - first] == old, f"page {page} is in state {owner[page - first]}, not {old}"
            owner[page - first] = new

    def check(self) -> None:
        """Raise AssertionError unless free + held + tree pages are exactly all pages. Linear in the number of pages."""
        counts = (self._owner.count(FREE), self._owner.count(HELD), self._owner.count(TREE))
        assert counts == (len(self._free), self.held, self.in_tree)
        assert len(set(self._free)) == len(self._free)
