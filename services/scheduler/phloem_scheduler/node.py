"""What the tree is made of: nodes, and the copies of their KV on workers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ordered import Ordered
    from .requests import Choice
    from .shelf import Shelf

TOKEN_BYTES = 4
# Of a copy that no request has used yet: lower than any request's, which are 32-bit numbers.
NO_PRIORITY = -(1 << 31) - 1

# (cache salt, extra key): a tuple, not a concatenation, so ("bc", "a") and ("c", "ab") stay apart.
Namespace = tuple[str, str]

# A waiting choice at its place among those of the same node: (key, choice). Keys of two choices always differ, so choices are never compared.
Entry = tuple[tuple[float, ...], "Choice"]
# A node at its place in an order of waiting, and in one of eviction: (numbers ..., node.order, node).
Standing = tuple[Any, ...]
Outgoing = tuple[Any, ...]


class Copy:
    """A node's KV on one worker."""

    __slots__ = ("created", "hits", "kids", "last_use", "locks", "outgoing", "pages", "pins", "priority")

    def __init__(self, pages: array[int], created: int) -> None:
        self.pages = pages  # KV page ids, one for each page of the node's key
        self.kids = 0  # children of the node that have a copy here too
        self.locks = 0  # users of this copy or of any below it
        self.hits = 0  # choices that found it here
        self.last_use = created  # counter value of the last use
        self.created = created
        self.priority = NO_PRIORITY  # highest of those who used it
        self.outgoing: Outgoing | None = None  # its place in the shelf's order of eviction, if it can go
        self.pins = 0  # leases on it or below it; each is one of its locks


class Node:
    """One edge of the tree and the node it leads to. It is resident where it has a copy; without any, it is only wanted."""

    __slots__ = (
        "best",
        "children",
        "computing",
        "copies",
        "depth",
        "front",
        "hashes",
        "key",
        "namespace",
        "order",
        "own",
        "own_live",
        "parent",
        "refs",
        "standing",
        "turn",
        "wanted",
    )

    def __init__(self, namespace: Namespace, parent: Node | None, key: bytes, depth: int, order: int) -> None:
        self.namespace = namespace
        self.parent = parent  # None for the root of a namespace
        self.key = key  # packed tokens of the edge, whole pages
        self.depth = depth  # pages from the root to the end of the edge
        self.children: dict[bytes, Node] = {}  # by the bytes of the child's first page
        self.copies: dict[Shelf, Copy] = {}
        self.computing: dict[Shelf, object] = {}  # where a row is about to compute it, and which
        self.order = order  # creation number: breaks ties
        self.wanted = 0  # waiting choices whose prompts run through this edge
        self.refs = 0  # other reasons to keep it: rows that compute towards it; for a root, locked paths
        self.hashes: array[int] | None = None  # of its first pages, as far as anybody asked (see `events`)
        # The order of waiting (see `frontier`): choices that hang here, children through which others can be picked, and the first of both.
        self.own: list[Entry] | None = None
        self.own_live = 0
        self.front: Ordered[Standing] | None = None
        self.best: Entry | None = None
        self.standing: tuple[Ordered[Standing], Standing] | None = None  # where the node itself stands with its best
        self.turn: tuple[float, ...] | None = None  # of a resident node: the place of its best among all that wait

    @property
    def resident(self) -> bool:
        """Whether some worker has its KV. The empty prefix is everywhere."""
        return bool(self.copies) or self.parent is None

    @property
    def disposable(self) -> bool:
        """Whether nothing needs it."""
        return not (self.copies or self.children or self.wanted or self.refs or self.computing)


def common_length(key: bytes, start: int, edge: bytes, unit: int) -> int:
    """Length in bytes of the longest common beginning of key[start:] and edge, rounded down to a multiple of unit."""
    if key.startswith(edge, start):
        return len(edge) // unit * unit
    total = min(len(key) - start, len(edge)) // unit * unit
    same, window = 0, unit
    while same < total:
        window = min(window, total - same)
        if not key.startswith(edge[same : same + window], start + same):
            break
        same += window
        window *= 2
    else:
        return total
    # The first difference lies within the window: halve it, in whole units, until it is one unit.
    while window > unit:
        half = window // unit // 2 * unit
        if key.startswith(edge[same : same + half], start + same):
            same += half
            window -= half
        else:
            window = half
    return same


def walk(top: Node) -> Iterator[Node]:
    """top and every node below it, parents before children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
