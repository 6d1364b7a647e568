"""A walk through all that one shelf has, a part at a time, while the tree may change between the parts."""

from __future__ import annotations

from .node import Node
from .shelf import Shelf
from .tree import RadixTree


class Snapshot:
    """Gives every node that was on the shelf when the walk began and is when it gets there; some twice, if they were split meanwhile.

    Pages that come or go in between are the caller's to know.
    """

    def __init__(self, shelf: Shelf, tree: RadixTree) -> None:
        self.shelf = shelf
        self.begun = False  # the caller notes here that it has told of a part
        self.cost = 0  # pages given, and nodes passed by
        self._stack = list(tree.roots.values())
        self._told: dict[Node, None] = {}

    @property
    def done(self) -> bool:
        """Whether no node is left."""
        return not self._stack

    def part(self, most: int) -> list[Node]:
        """The next nodes, parents before children, for a cost of about `most`."""
        nodes: list[Node] = []
        end = self.cost + most
        while self._stack and self.cost < end:
            node = self._stack.pop()
            self.cost += 1
            if node.parent is not None and self.shelf not in node.copies:
                continue
            self._stack.extend(node.children.values())
            for step in self._untold(node):
                self._told[step] = None
                nodes.append(step)
                self.cost += len(step.copies[self.shelf].pages)
        return nodes

    def _untold(self, node: Node) -> list[Node]:
        """node and what is above it and not told: a split may have put a node in that was not there when its children were found."""
        path: list[Node] = []
        while node.parent is not None and node not in self._told:
            path.append(node)
            node = node.parent
        return path[::-1]
