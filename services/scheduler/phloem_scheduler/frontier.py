"""The order of waiting choices, kept on the tree: picking the first costs no look at the others.

A choice hangs on the deepest node of its prompt. best(v) is the first choice that can be reached from v through nodes that no worker has and
that nobody computes; it is found from v's own choices and from the best of such children, kept in lazy heaps upward. All resident
nodes with a best are in one heap, where the cached length of the node counts in. Adding or removing a choice costs its branch's
depth times a logarithm, a node that becomes resident (or no more) a logarithm, a split nothing.

What is below a node that a row computes right now can't be picked: it will be read from the tree as soon as it is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .node import Entry, Node
from .requests import Choice

# Heaps keep entries that no longer count; they are rebuilt when those are the greater part, or fewer than this.
SLACK = 64


class Frontier:
    """Choices that may be picked.

    Args:
        key: a choice's place among those with the same cached length; must be unique.
        score: a key, given how many pages are cached.
        rekey: told when the best of a resident node has changed.
    """

    def __init__(
        self,
        key: Callable[[Choice], tuple[float, ...]],
        score: Callable[[tuple[float, ...], int], tuple[float, ...]],
        rekey: Callable[[Node], None],
    ) -> None:
        self._key = key
        self._score = score
        self._rekey = rekey
        self._count = 0
        self._pushed = 0
        self._heap: list[tuple[tuple[float, ...], int, Node, Entry]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, choice: Choice, node: Node) -> None:
        """choice hangs on node."""
        if node.own is None:
            node.own = []
        choice.stamp += 1
        heapq.heappush(node.own, (self._key(choice), choice, choice.stamp))
        node.own_live += 1
        self._count += 1
        self._update(node)

    def remove(self, choice: Choice, node: Node) -> None:
        """choice hangs there no more."""
        choice.stamp += 1
        node.own_live -= 1
        self._count -= 1
        own = node.own
        assert own is not None
        if not node.own_live:
            node.own = None
        elif len(own) > 2 * node.own_live + SLACK:
            node.own = [entry for entry in own if entry[2] == entry[1].stamp]
            heapq.heapify(node.own)
        self._update(node)

    def first(self) -> Choice | None:
        """Who is picked next; it stays."""
        heap = self._heap
        while heap:
            _, _, node, best = heap[0]
            if node.best is best and node.resident:
                return best[1]
            heapq.heappop(heap)
        return None

    def changed(self, node: Node) -> None:
        """See `tree.Waiting`."""
        if node.best is None or node.parent is None:
            return
        if node.copies:
            self._enter(node)
        elif not node.computing:
            self._push_up(node.parent, node)
        self._update(node.parent)

    def split(self, upper: Node, lower: Node) -> None:
        """See `tree.Waiting`."""
        if lower.best is None or lower.copies or lower.computing:
            return
        self._push_up(upper, lower)
        upper.best = lower.best
        if upper.parent is not None:
            self._push_up(upper.parent, upper)

    def _update(self, node: Node) -> None:
        """node's best may have changed; carry the news as far up as it matters."""
        while True:
            best = self._find(node)
            if best is node.best:
                return
            node.best, node.turn = best, None
            parent = node.parent
            if parent is None or node.copies:
                self._enter(node)
                self._rekey(node)
                return
            if node.computing:
                return
            if best is not None:
                self._push_up(parent, node)
            node = parent

    def _find(self, node: Node) -> Entry | None:
        own, front = node.own, node.front
        best: Entry | None = None
        if own is not None:
            while own[0][2] != own[0][1].stamp:
                heapq.heappop(own)
            best = own[0]
        if front is None:
            return best
        while front:
            if self._counts(node, front[0]):
                below = front[0][2].best
                assert below is not None
                return below if best is None or below[0] < best[0] else best
            heapq.heappop(front)
        node.front = None
        return best

    @staticmethod
    def _counts(node: Node, entry: tuple[tuple[float, ...], int, Node]) -> bool:
        key, _, child = entry
        if child.parent is not node or child.copies or child.computing:
            return False
        return child.best is not None and child.best[0] is key

    def _push_up(self, parent: Node, child: Node) -> None:
        assert child.best is not None
        if parent.front is None:
            parent.front = []
        front = parent.front
        heapq.heappush(front, (child.best[0], child.order, child))
        if len(front) > 2 * len(parent.children) + SLACK:
            parent.front = list({id(entry[2]): entry for entry in front if self._counts(parent, entry)}.values())
            heapq.heapify(parent.front)

    def _enter(self, node: Node) -> None:
        """Put a resident node's best into the heap."""
        best = node.best
        if best is None:
            return
        self._pushed += 1
        node.turn = self._score(best[0], node.depth)
        heapq.heappush(self._heap, (node.turn, self._pushed, node, best))
        if len(self._heap) > 2 * self._count + SLACK:
            there = {id(entry[2]): entry for entry in self._heap if entry[2].best is entry[3] and entry[2].resident}
            self._heap = list(there.values())
            heapq.heapify(self._heap)
