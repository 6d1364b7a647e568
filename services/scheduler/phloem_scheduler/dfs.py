"""Depth first through the tree: the branch where most choices wait, down to its end, then the next.

weight(v) is how many choices of one priority can be picked at v or below. At each node the heaviest child comes first and is gone through to
its end (until nobody there can be picked) before its siblings; a node's own choices come after its children's. Weights are kept upward in
lazy heaps, so that a pick costs the depth of a branch times a logarithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from .node import Node
from .requests import Choice

SLACK = 64

# (key, choice, stamp): counts while the stamp is the choice's own.
Entry = tuple[tuple[float, ...], Choice, int]


@dataclass(slots=True)
class _Mark:
    """What one priority knows of a node; there is none for a node below which nobody of it waits."""

    weight: int = 0
    counted: bool = True  # in the weight of the parent: not while a row computes the node
    own: list[Entry] = field(default_factory=list)  # lazy
    own_live: int = 0
    heavy: list[tuple[int, int, Node]] = field(default_factory=list)  # (-weight, order, child), lazy
    under_way: Node | None = None  # the child that is gone through


class _Level:
    """The walk of one priority."""

    def __init__(self) -> None:
        self.marks: dict[Node, _Mark] = {}
        self._top = _Mark()  # above the roots

    def add(self, node: Node, entry: Entry) -> None:
        mark = self._mark(node)
        heapq.heappush(mark.own, entry)
        mark.own_live += 1
        self._weigh(node, 1)

    def remove(self, node: Node) -> None:
        mark = self.marks[node]
        mark.own_live -= 1
        if len(mark.own) > 2 * mark.own_live + SLACK:
            mark.own = [entry for entry in mark.own if entry[2] == entry[1].stamp]
            heapq.heapify(mark.own)
        self._weigh(node, -1)

    def first(self) -> Choice | None:
        mark, node = self._top, None
        while (child := self._heaviest(mark, node)) is not None:
            mark, node = self.marks[child], child
        while mark.own and mark.own[0][2] != mark.own[0][1].stamp:
            heapq.heappop(mark.own)
        return mark.own[0][1] if mark.own else None

    def changed(self, node: Node) -> None:
        mark = self.marks.get(node)
        if mark is None or mark.counted is not _hidden(node):
            return
        mark.counted = not mark.counted
        if mark.counted:
            self._enter(node, mark)
        else:
            self._not_under_way(node)
        self._climb(node.parent, mark.weight if mark.counted else -mark.weight)

    def split(self, upper: Node, lower: Node) -> None:
        mark = self.marks.get(lower)
        if mark is None or not mark.counted:
            return
        new = self.marks[upper] = _Mark(mark.weight)
        above = self._above(upper)
        if above.under_way is lower:
            above.under_way, new.under_way = upper, lower
        self._enter(lower, mark)
        self._enter(upper, new)

    def _mark(self, node: Node) -> _Mark:
        mark = self.marks.get(node)
        if mark is None:
            mark = self.marks[node] = _Mark(counted=not _hidden(node))
        return mark

    def _above(self, node: Node) -> _Mark:
        return self._top if node.parent is None else self._mark(node.parent)

    def _weigh(self, node: Node, change: int) -> None:
        """So many more choices hang on node."""
        mark = self.marks[node]
        mark.weight += change
        if mark.counted:
            self._enter(node, mark)
            self._climb(node.parent, change)
        if not mark.weight:
            self._unmark(node)

    def _climb(self, node: Node | None, change: int) -> None:
        """So many more can be picked below node and its ancestors, up to one that is being computed."""
        while node is not None:
            mark = self._mark(node)
            mark.weight += change
            counted = mark.counted
            if not mark.weight:
                self._unmark(node)
            elif counted:
                self._enter(node, mark)
            if not counted:
                return
            node = node.parent

    def _unmark(self, node: Node) -> None:
        self._not_under_way(node)
        del self.marks[node]

    def _not_under_way(self, node: Node) -> None:
        """Nobody can be picked through node any more."""
        above = self._top if node.parent is None else self.marks.get(node.parent)
        if above is not None and above.under_way is node:
            above.under_way = None

    def _enter(self, node: Node, mark: _Mark) -> None:
        """node stands at its present weight among its parent's children."""
        if not mark.weight:
            return
        above = self._above(node)
        heapq.heappush(above.heavy, (-mark.weight, node.order, node))
        if len(above.heavy) > 2 * (len(node.parent.children) if node.parent is not None else len(self.marks)) + SLACK:
            valid = {id(entry[2]): entry for entry in above.heavy if self._counts(entry, node.parent)}
            above.heavy = list(valid.values())
            heapq.heapify(above.heavy)

    def _heaviest(self, mark: _Mark, node: Node | None) -> Node | None:
        """The child to go through: the one under way, or else the heaviest."""
        while mark.under_way is None and mark.heavy:
            if self._counts(mark.heavy[0], node):
                mark.under_way = mark.heavy[0][2]
            else:
                heapq.heappop(mark.heavy)
        return mark.under_way

    def _counts(self, entry: tuple[int, int, Node], parent: Node | None) -> bool:
        mark = self.marks.get(entry[2])
        return mark is not None and mark.counted and mark.weight == -entry[0] and entry[2].parent is parent


def _hidden(node: Node) -> bool:
    """A row computes it: what is below can't be picked before it is there."""
    return bool(node.computing) and not node.copies


class DepthFirst:
    """One such walk for each priority; the highest that has somebody to pick goes first."""

    def __init__(self, key: Callable[[Choice], tuple[float, ...]]) -> None:
        self._key = key
        self._count = 0
        self._levels: dict[int, _Level] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, choice: Choice, node: Node) -> None:
        """choice hangs on node."""
        choice.stamp += 1
        node.own_live += 1
        self._count += 1
        level = self._levels.setdefault(choice.request.priority, _Level())
        level.add(node, (self._key(choice), choice, choice.stamp))

    def remove(self, choice: Choice, node: Node) -> None:
        """choice hangs there no more."""
        choice.stamp += 1
        node.own_live -= 1
        self._count -= 1
        level = self._levels[choice.request.priority]
        level.remove(node)
        if not level.marks:
            del self._levels[choice.request.priority]

    def first(self) -> Choice | None:
        """The next of the highest priority."""
        for priority in sorted(self._levels, reverse=True):
            if (choice := self._levels[priority].first()) is not None:
                return choice
        return None

    def changed(self, node: Node) -> None:
        """See `tree.Waiting`."""
        for level in self._levels.values():
            level.changed(node)

    def split(self, upper: Node, lower: Node) -> None:
        """See `tree.Waiting`."""
        for level in self._levels.values():
            level.split(upper, lower)
