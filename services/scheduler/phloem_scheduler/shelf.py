"""One worker's part of the tree: how much of it is there, and in which order it would go.

A copy can go once nobody has it locked and no child of its node has a copy here. Copies that no waiting choice wants go before those that
one does; of these, the one whose turn comes last goes first, since its next use is furthest away (Belady 1966).
"""

from __future__ import annotations

from collections.abc import Callable

from .eviction import EVICTION, Value
from .node import Copy, Node, Outgoing
from .ordered import Ordered

# Wanted, but by nobody who could be picked from here: nearer to going than any that has a place in the order.
_NO_TURN: tuple[float, ...] = (float("-inf"),)


class Shelf:
    """Totals and the order of eviction. Compared by identity; a worker's new session is a new shelf."""

    def __init__(self, name: str = "", eviction: str = "lru") -> None:
        self.name = name
        self.total_pages = 0  # in all copies
        self.locked_pages = 0  # in copies with a lock
        self.pinned_pages = 0  # in copies with a lease
        self.copies = 0
        self.locks = 0  # paths that are locked
        self._value: Callable[[Copy], Value] = EVICTION[eviction]
        self._outgoing: Ordered[Outgoing] = Ordered()  # copies that can go, and no others

    @property
    def evictable_pages(self) -> int:
        """Pages that eviction could free at this moment."""
        return self.total_pages - self.locked_pages

    def offer(self, node: Node, copy: Copy) -> None:
        """Put copy (of node, here) at its present place, if it can go."""
        if copy.locks or copy.kids:
            return
        outgoing = self._place(node, copy)
        if outgoing != copy.outgoing:
            self.withdraw(copy)
            copy.outgoing = outgoing
            self._outgoing.add(outgoing)

    def withdraw(self, copy: Copy) -> None:
        """copy can't go, or is gone."""
        if copy.outgoing is not None:
            self._outgoing.remove(copy.outgoing)
            copy.outgoing = None

    def next_out(self) -> tuple[Node, Copy] | None:
        """The copy that goes first. It must be dropped, or offered again once it has changed."""
        if not self._outgoing:
            return None
        node: Node = self._outgoing.first()[-1]
        return node, node.copies[self]

    def _place(self, node: Node, copy: Copy) -> Outgoing:
        if not node.wanted:
            return (0, *self._value(copy), node.order, node)
        turn = tuple(-part for part in node.turn) if node.turn is not None else _NO_TURN
        return (1, *turn, *self._value(copy), node.order, node)

    def check(self, copies: list[tuple[Node, Copy]]) -> None:
        """Raise AssertionError if totals or order contradict these copies, all there are here."""
        assert self.copies == len(copies)
        assert self.total_pages == sum(len(copy.pages) for _, copy in copies)
        assert self.pinned_pages == sum(len(copy.pages) for _, copy in copies if copy.pins)
        assert self.locked_pages == sum(len(copy.pages) for _, copy in copies if copy.locks)
        assert list(self._outgoing) == sorted(copy.outgoing for _, copy in copies if copy.outgoing is not None)
        for node, copy in copies:
            assert copy.kids == sum(self in child.copies for child in node.children.values())
            assert copy.locks >= max(
                (child.copies[self].locks for child in node.children.values() if self in child.copies), default=0
            )
            assert len(node.key) == 0 or len(copy.pages) > 0
            can_go = not (copy.locks or copy.kids)
            assert copy.outgoing == (self._place(node, copy) if can_go else None), "a copy has a wrong place, or none"
