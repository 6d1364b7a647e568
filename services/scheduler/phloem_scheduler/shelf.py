"""One worker's part of the tree: how much of it is there, and in which order it would go.

A copy can go once nobody has it locked and no child of its node has a copy here. Copies that no waiting choice wants go before those that
one does; of these, the one whose turn comes last goes first, since its next use is furthest away (Belady 1966).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from .eviction import EVICTION, Value
from .node import Copy, Node

# Wanted, but by nobody who could be picked from here: nearer to going than any that has a place in the order.
_NO_PLACE: tuple[float, ...] = (float("-inf"),)


class Shelf:
    """Totals and the eviction heap. Compared by identity; a worker's new session is a new shelf."""

    def __init__(self, name: str = "", eviction: str = "lru") -> None:
        self.name = name
        self.total_pages = 0  # in all copies
        self.locked_pages = 0  # in copies with a lock
        self.pinned_pages = 0  # in copies with a lease
        self.copies = 0
        self.locks = 0  # paths that are locked
        self._value: Callable[[Copy], Value] = EVICTION[eviction]
        # At most one valid entry for each copy: the one with the key that the copy names.
        self._heap: list[tuple[tuple[Any, ...], int, Node]] = []

    @property
    def evictable_pages(self) -> int:
        """Pages that eviction could free at this moment."""
        return self.total_pages - self.locked_pages

    def offer(self, node: Node, copy: Copy) -> None:
        """Enter copy (of node, here) at its present place, if it can go."""
        if copy.locks or copy.kids:
            return
        key = self._key(node, copy)
        if key == copy.queued:
            return
        copy.queued = key
        heapq.heappush(self._heap, (key, node.order, node))
        if len(self._heap) > 2 * self.copies + 64:
            self._heap = [entry for entry in self._heap if self._valid(entry)]
            heapq.heapify(self._heap)

    def next_out(self) -> tuple[Node, Copy] | None:
        """Take out of the heap the copy that goes first. It must be dropped, or offered again."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if not self._valid(entry):
                continue
            node = entry[2]
            copy = node.copies[self]
            copy.queued = None
            if copy.locks or copy.kids:
                continue  # offered again when its last lock or child goes
            if self._key(node, copy) == entry[0]:
                return node, copy
            self.offer(node, copy)
        return None

    def _key(self, node: Node, copy: Copy) -> tuple[Any, ...]:
        if not node.wanted:
            return (0, self._value(copy))
        place = tuple(-part for part in node.turn) if node.turn is not None else _NO_PLACE
        return (1, place, self._value(copy))

    def _valid(self, entry: tuple[tuple[Any, ...], int, Node]) -> bool:
        copy = entry[2].copies.get(self)
        return copy is not None and copy.queued is entry[0]

    def check(self, copies: list[tuple[Node, Copy]]) -> None:
        """Raise AssertionError if totals or heap contradict these copies, all there are here."""
        assert self.copies == len(copies)
        assert self.total_pages == sum(len(copy.pages) for _, copy in copies)
        assert self.pinned_pages == sum(len(copy.pages) for _, copy in copies if copy.pins)
        assert self.locked_pages == sum(len(copy.pages) for _, copy in copies if copy.locks)
        entered = {id(entry[2]) for entry in self._heap if self._valid(entry)}
        for node, copy in copies:
            assert copy.kids == sum(self in child.copies for child in node.children.values())
            assert copy.locks >= max(
                (child.copies[self].locks for child in node.children.values() if self in child.copies), default=0
            )
            assert len(node.key) == 0 or len(copy.pages) > 0
            assert copy.locks or copy.kids or id(node) in entered, "a copy that can go is not in the heap"
