"""The radix tree: one compressed tree over token pages, for each namespace a root.

A node's edge is a run of whole pages: its tokens as packed little-endian uint32 bytes, and beside them the KV pages that hold
them. Children are found by the bytes of their first page, so two children of a node always differ within their first page, and
splits fall on page boundaries only. Edges are compared as byte slices (a memcmp), galloping to the first difference; no loop
runs over tokens.

Whoever uses a path holds a lock on its deepest node, which locks the whole path to the root. Eviction takes leaves nobody has
locked, least recently used first, and cuts them from their end, so that it frees exactly what was asked for; a parent left
without children becomes a leaf and follows. Recency is a counter: equal sequences of calls give equal trees.

`Node.pages` says where a node's KV is on the one worker this tree belongs to. It is the only place that knows, so a tree over
several workers changes that field and nothing about keys, splits or locks.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN_BYTES = 4

# (cache salt, extra key): a tuple, not a concatenation, so ("bc", "a") and ("c", "ab") stay apart.
Namespace = tuple[str, str]


class Node:
    """One edge of the tree and the node it leads to."""

    __slots__ = ("children", "key", "last_use", "locks", "namespace", "order", "pages", "parent", "queued")

    def __init__(self, namespace: Namespace, parent: Node | None, key: bytes, pages: array[int], order: int) -> None:
        self.namespace = namespace
        self.parent = parent  # None for the root of a namespace
        self.key = key  # packed tokens of the edge, whole pages
        self.pages = pages  # KV page ids, one for each page of key
        self.children: dict[bytes, Node] = {}  # by the bytes of the child's first page
        self.locks = 0  # users of this node or of any node below it
        self.last_use = 0  # counter value of the last walk through here
        self.order = order  # creation number: breaks ties between equally recent nodes
        self.queued = False  # has an entry in the eviction heap


@dataclass(slots=True)
class Match:
    """A locked path: `pages` (uint32 ids) hold the first `len(pages) * page_size` tokens. Give `node` back with `release`."""

    node: Node
    pages: array[int]


@dataclass(slots=True)
class Extension:
    """What `extend` did: the caller's lock is on `node` now; the tree had its first `present` pages already, which stay its own."""

    node: Node
    present: int


def common_length(key: bytes, start: int, edge: bytes, unit: int) -> int:
    """Length in bytes of the longest common beginning of key[start:] and edge, rounded down to a multiple of unit."""
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


class RadixTree:
    """Locks, matches, extends and evicts paths of token pages. Page ids are opaque: the caller allocates and frees them."""

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size: must be at least 1, not {page_size}")
        self.page_size = page_size
        self.total_pages = 0  # pages in all nodes
        self.locked_pages = 0  # pages in nodes with a lock
        self._unit = page_size * TOKEN_BYTES
        self._roots: dict[Namespace, Node] = {}
        self._clock = 0
        self._created = 0
        # At most one entry for each node, keyed by a recency that may be out of date: recency only grows, so a stale entry is
        # pushed again with the present value when it comes to the top. The heap is thus never larger than the tree.
        self._evictable: list[tuple[int, int, Node]] = []

    @property
    def evictable_pages(self) -> int:
        """Pages that eviction could free at this moment."""
        return self.total_pages - self.locked_pages

    @property
    def locks(self) -> int:
        """Locks that are held, each on one path."""
        return sum(root.locks for root in self._roots.values())

    def peek(self, namespace: Namespace, key: bytes) -> int:
        """How many whole pages of key the tree holds. Changes nothing, not even recency."""
        node, at = self._roots.get(namespace), 0
        if node is None:
            return 0
        while (child := node.children.get(key[at : at + self._unit])) is not None:
            same = common_length(key, at, child.key, self._unit)
            at += same
            if same < len(child.key):
                break
            node = child
        return at // self._unit

    def acquire(self, namespace: Namespace, key: bytes) -> Match:
        """Lock the longest path that key begins with (whole pages); split its last edge if key leaves it midway.

        key: packed tokens; a last partial page is ignored. The caller must `release` the node, or move the lock on with
        `extend`.
        """
        self._clock += 1
        node, at = self._root(namespace), 0
        pages: array[int] = array("I")
        node.last_use = self._clock
        while (child := node.children.get(key[at : at + self._unit])) is not None:
            same = common_length(key, at, child.key, self._unit)
            if same < len(child.key):
                child = self._split(child, same)
            child.last_use = self._clock
            at += same
            pages.extend(child.pages)
            node = child
        self._lock_up_to(node, None)
        return Match(node, pages)

    def extend(self, node: Node, key: bytes, pages: array[int]) -> Extension:
        """Add key below node and move the caller's lock on node to the end of it.

        key: packed tokens, whole pages, that follow node's path; pages: as many page ids. The tree takes pages[present:] over;
        those it had an equal of already (pages[:present]) stay the caller's.
        """
        assert len(key) == len(pages) * self._unit
        assert node.locks > 0
        self._clock += 1
        start, at = node, 0
        while (child := node.children.get(key[at : at + self._unit])) is not None:
            same = common_length(key, at, child.key, self._unit)
            if same < len(child.key):
                child = self._split(child, same)
            at += same
            node = child
        present = at // self._unit
        if present < len(pages):
            node = self._append(node, key[at:], pages[present:], own_lock_only=node is start)
        self._lock_up_to(node, start)
        self._touch(node)
        return Extension(node, present)

    def continues(self, node: Node, page: bytes) -> bool:
        """Whether node has a child that begins with this page (packed tokens of one page)."""
        return page in node.children

    def release(self, node: Node) -> None:
        """Undo one lock on node and its path."""
        step: Node | None = node
        while step is not None:
            assert step.locks > 0
            step.locks -= 1
            if step.locks == 0:
                self.locked_pages -= len(step.pages)
                self._offer(step)
            step = step.parent

    def evict(self, count: int) -> array[int]:
        """Free up to count pages of unlocked leaves, least recently used first; return their ids (fewer if no more can go)."""
        freed: array[int] = array("I")
        while len(freed) < count and self._evictable:
            last_use, _, node = heapq.heappop(self._evictable)
            node.queued = False
            if node.locks or node.children:
                continue  # offered again when its last lock or child goes
            if last_use == node.last_use:
                self._cut(node, count - len(freed), freed)
            self._offer(node)
        return freed

    def _root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._node(namespace, None, b"", array("I"))
        return root

    def _node(self, namespace: Namespace, parent: Node | None, key: bytes, pages: array[int]) -> Node:
        self._created += 1
        return Node(namespace, parent, key, pages, self._created)

    def _split(self, child: Node, length: int) -> Node:
        """Cut child's edge after `length` bytes; the new upper node gets the same locks.

        child stays the deeper end, so whoever holds it keeps the whole path.
        """
        parent = child.parent
        assert parent is not None
        cut = length // self._unit
        upper = self._node(child.namespace, parent, child.key[:length], child.pages[:cut])
        upper.locks, upper.last_use = child.locks, child.last_use
        parent.children[upper.key[: self._unit]] = upper
        child.key, child.pages, child.parent = child.key[length:], child.pages[cut:], upper
        upper.children[child.key[: self._unit]] = child
        return upper

    def _append(self, node: Node, key: bytes, pages: array[int], own_lock_only: bool) -> Node:
        """Hang key below node: as part of node's own edge if the caller is its only user, so that a growing output stays one node."""
        self.total_pages += len(pages)
        if own_lock_only and node.locks == 1 and not node.children and node.parent is not None:
            node.key += key
            node.pages.extend(pages)
            self.locked_pages += len(pages)
            return node
        leaf = self._node(node.namespace, node, key, pages)
        node.children[key[: self._unit]] = leaf
        return leaf

    def _lock_up_to(self, node: Node, end: Node | None) -> None:
        """Add a lock on node and its ancestors, short of end."""
        step: Node | None = node
        while step is not end and step is not None:
            if step.locks == 0:
                self.locked_pages += len(step.pages)
            step.locks += 1
            step = step.parent

    def _touch(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            step.last_use = self._clock
            step = step.parent

    def _offer(self, node: Node) -> None:
        """Queue node for eviction if it can go; forget the root of a namespace that holds nothing."""
        if node.locks or node.children:
            return
        if node.parent is None:
            self._roots.pop(node.namespace, None)
        elif not node.queued and node.pages:
            node.queued = True
            heapq.heappush(self._evictable, (node.last_use, node.order, node))

    def _cut(self, leaf: Node, count: int, freed: array[int]) -> None:
        """Free the last `count` pages of leaf, and leaf itself when none is left."""
        keep = max(0, len(leaf.pages) - count)
        freed.extend(leaf.pages[keep:])
        self.total_pages -= len(leaf.pages) - keep
        if keep:
            leaf.key, leaf.pages = leaf.key[: keep * self._unit], leaf.pages[:keep]
        else:
            self._detach(leaf)

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self._unit]]
        node.pages = array("I")
        self._offer(parent)

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents before children."""
        for root in self._roots.values():
            yield from walk(root)

    def check(self) -> None:
        """Raise AssertionError if the tree contradicts itself. Linear in the number of nodes: for tests and for an idle service."""
        total = locked = 0
        for node in self.nodes():
            total += len(node.pages)
            locked += len(node.pages) if node.locks else 0
            assert len(node.key) == len(node.pages) * self._unit
            assert node.locks >= max((child.locks for child in node.children.values()), default=0)
            if node.parent is None:
                assert node.locks or node.children, "an empty namespace was kept"
                continue
            assert node.pages
            assert node.parent.children[node.key[: self._unit]] is node
            assert node.last_use <= node.parent.last_use
            assert node.queued or node.locks or node.children, "an evictable leaf is not queued"
        assert (total, locked) == (self.total_pages, self.locked_pages)


def walk(top: Node) -> Iterator[Node]:
    """top and every node below it, parents before children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
