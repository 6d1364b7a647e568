"""The order of dfs-weight by its definition, from scratch each time.

The walk goes from the roots to the heaviest branch (where most can be picked), of equally heavy ones to the older, and stays in it until
nobody there can be picked; what hangs on a node comes after all that is below it. Each priority has a walk of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from phloem_scheduler.node import Namespace, Node
from phloem_scheduler.requests import Choice
from phloem_scheduler.tree import RadixTree

Branch = TypeVar("Branch", bound=Hashable)


@dataclass(frozen=True)
class Waiter:
    """A waiting choice, its path, and the end (in bytes) of the last edge of it that is being computed; 0 if none is."""

    choice: Choice
    key: tuple[float, ...]
    namespace: Namespace
    path: bytes
    blocked_to: int


class DepthFirstWalk:
    """Remembers only which branch is under way at each place: (priority, namespace, path) -> the page that follows."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._unit = tree.page_size * 4
        self._space: dict[int, Namespace] = {}
        self._page: dict[tuple[int, Namespace, bytes], bytes] = {}

    def first(self, waiters: Iterable[Waiter]) -> Choice | None:
        """Who is picked next; the way to it is under way from now on."""
        pickable = [waiter for waiter in waiters if not waiter.blocked_to]
        if not pickable:
            return None
        level = max(waiter.choice.request.priority for waiter in pickable)
        return self._walk(level, [waiter for waiter in pickable if waiter.choice.request.priority == level])

    def forget(self, waiters: list[Waiter]) -> None:
        """Something has changed: branches where nobody can be picked (from their beginning on) are not under way any more."""
        self._space = {
            level: namespace
            for level, namespace in self._space.items()
            if any(self._through(waiter, level, namespace, b"") for waiter in waiters)
        }
        self._page = {
            (level, namespace, at): page
            for (level, namespace, at), page in self._page.items()
            if any(self._through(waiter, level, namespace, at + page) for waiter in waiters)
        }

    @staticmethod
    def _through(waiter: Waiter, level: int, namespace: Namespace, branch: bytes) -> bool:
        """Whether waiter counts for a branch: it is below, and nothing from the branch's first page on is being computed."""
        return (
            waiter.choice.request.priority == level
            and waiter.namespace == namespace
            and waiter.path.startswith(branch)
            and (waiter.blocked_to < len(branch) or not waiter.blocked_to)
        )

    def _walk(self, level: int, there: list[Waiter]) -> Choice:
        spaces = {waiter.namespace: self._tree.roots[waiter.namespace] for waiter in there}
        space = self._space.get(level)
        if space not in spaces:
            space = heaviest(there, spaces, lambda waiter: waiter.namespace)
        assert space is not None
        self._space[level] = space
        there = [waiter for waiter in there if waiter.namespace == space]
        at, node = b"", spaces[space]
        while below := [waiter for waiter in there if len(waiter.path) > len(at)]:
            there, node = self._step(level, space, at, node, below)
            at += node.key
        return min(there, key=lambda waiter: waiter.key).choice

    def _step(
        self, level: int, space: Namespace, at: bytes, node: Node, below: list[Waiter]
    ) -> tuple[list[Waiter], Node]:
        """One edge further: who is below it, and the node it leads to."""

        def next_page(waiter: Waiter) -> bytes:
            return waiter.path[len(at) : len(at) + self._unit]

        children = {next_page(waiter): node.children[next_page(waiter)] for waiter in below}
        page = self._page.get((level, space, at))
        if page is None or page not in children:
            page = heaviest(below, children, next_page)
        child = children[page]
        for end in range(0, len(child.key), self._unit):  # also within the edge, which may be split later
            self._page[level, space, at + child.key[:end]] = child.key[end : end + self._unit]
        return [waiter for waiter in below if next_page(waiter) == page], child


def heaviest(there: list[Waiter], nodes: dict[Branch, Node], branch: Callable[[Waiter], Branch]) -> Branch:
    """The branch that most go through, of equally heavy ones the older node's."""
    weights = dict.fromkeys(nodes, 0)
    for waiter in there:
        weights[branch(waiter)] += 1
    return min(nodes, key=lambda name: (-weights[name], nodes[name].order))
