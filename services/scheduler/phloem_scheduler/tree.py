"""The radix tree: one compressed tree over token pages for all workers, for each namespace a root.

A node's edge is a run of whole pages: its tokens as packed little-endian uint32 bytes, and for each worker that has computed them the KV
pages that hold them (a copy). Children are found by the bytes of their first page, so two children of a node always differ within
their first page, and splits fall on page boundaries only. Edges are compared as byte slices (a memcmp), galloping to the first
difference; no loop runs over tokens. A worker that has a node has all of the path to it.

Waiting choices hang on the tree too: a node that no worker has is there because some choice wants it, or because a row is about to compute
it. Whoever uses a path on a worker holds a lock on its deepest copy, which locks the whole path to the root. Recency is a counter:
equal sequences of calls give equal trees.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from .node import TOKEN_BYTES, Copy, Namespace, Node, common_length, walk
from .shelf import Shelf


class Waiting(Protocol):
    """The order of waiting choices, told of what happens to the nodes they hang on."""

    def split(self, upper: Node, lower: Node) -> None:
        """upper is new between lower and its former parent; it has lower's copies."""

    def changed(self, node: Node) -> None:
        """node became resident somewhere or nowhere, or is being computed now, or no more."""


class Watcher(Protocol):
    """Told of every change of a worker's cache."""

    def stored(self, shelf: Shelf, node: Node, start: int) -> None:
        """node's pages from `start` on (counted within its edge) have been placed on shelf."""

    def removed(self, shelf: Shelf, node: Node, start: int) -> None:
        """node's pages from `start` on are about to leave shelf."""


@dataclass(slots=True)
class Extension:
    """What `extend` did: the caller's lock is on `node` now; the worker had the first `present` pages already, which stay its own."""

    node: Node
    present: int


class RadixTree:
    """Locks, matches, extends and evicts paths of token pages. Page ids are opaque: the caller allocates and frees them."""

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size: must be at least 1, not {page_size}")
        self.page_size = page_size
        self.roots: dict[Namespace, Node] = {}
        self.size = 0  # nodes, roots not counted
        self.pages = 0  # of all edges that are resident somewhere, each counted once
        self.waiting: Waiting | None = None
        self.watcher: Watcher | None = None
        self._unit = page_size * TOKEN_BYTES
        self._clock = 0
        self._created = 0

    # --- Finding ----------------------------------------------------------------------------------------------------------

    def find(self, namespace: Namespace, key: bytes, shelf: Shelf) -> tuple[Node, int]:
        """The deepest node on shelf that key runs into, and how many whole pages of key the shelf has. Changes nothing."""
        node, at = self.roots.get(namespace), 0
        if node is None:
            return Node(namespace, None, b"", 0, 0), 0
        while (child := node.children.get(key[at : at + self._unit])) is not None and shelf in child.copies:
            same = common_length(key, at, child.key, self._unit)
            at += same
            node = child
            if same < len(child.key):
                break
        return node, at // self._unit

    @staticmethod
    def resident(shelf: Shelf, node: Node) -> Node:
        """The deepest node of node's path that shelf has; the root if none."""
        while node.parent is not None and shelf not in node.copies:
            node = node.parent
        return node

    @staticmethod
    def path_pages(shelf: Shelf, node: Node) -> array[int]:
        """Page ids of node's path on shelf, from the root on."""
        parts = []
        while node.parent is not None:
            parts.append(node.copies[shelf].pages)
            node = node.parent
        pages: array[int] = array("I")
        for part in reversed(parts):
            pages.extend(part)
        return pages

    # --- Wanting ----------------------------------------------------------------------------------------------------------

    def want(self, namespace: Namespace, key: bytes) -> Node:
        """A waiting choice hangs on key's path from now on; returns its deepest node. key: packed tokens, whole pages."""
        node, at = self._root(namespace), 0
        while (child := node.children.get(key[at : at + self._unit])) is not None:
            same = common_length(key, at, child.key, self._unit)
            if same < len(child.key):
                child = self._split(child, same)
            at += same
            node = child
        if at < len(key):
            node = self._append(node, key[at:])
        step: Node | None = node
        while step is not None:
            step.wanted += 1
            if step.wanted == 1:
                self.rekey(step)
            step = step.parent
        return node

    def unwant(self, node: Node) -> None:
        """Undo one `want` that returned node."""
        step: Node | None = node
        while step is not None:
            assert step.wanted > 0
            step.wanted -= 1
            if not step.wanted:
                self.rekey(step)
            step = step.parent
        self._prune(node)

    def rekey(self, node: Node) -> None:
        """node's place among those that may be evicted has changed."""
        for shelf, copy in node.copies.items():
            shelf.offer(node, copy)

    # --- Computing --------------------------------------------------------------------------------------------------------

    def compute(self, shelf: Shelf, node: Node, row: object) -> None:
        """row is about to compute, on shelf, whatever of node's path shelf lacks: others wait for it. Keeps node. Undone by `leave`."""
        node.refs += 1
        step = node
        while step.parent is not None and shelf not in step.copies:
            step.computing[shelf] = row
            if not step.copies and len(step.computing) == 1:
                self._changed(step)
            step = step.parent

    def pause(self, shelf: Shelf, node: Node, row: object) -> None:
        """row computes no more of node's path."""
        step = node
        while step.parent is not None and shelf not in step.copies:
            if step.computing.get(shelf) is row:
                del step.computing[shelf]
                if not step.copies and not step.computing:
                    self._changed(step)
            step = step.parent

    def leave(self, shelf: Shelf, node: Node, row: object) -> None:
        """Undo `compute`."""
        self.pause(shelf, node, row)
        node.refs -= 1
        self._prune(node)

    # --- Using ------------------------------------------------------------------------------------------------------------

    def lock(self, shelf: Shelf, node: Node) -> None:
        """Lock node's path on shelf. Owes `release`."""
        self._lock_up_to(shelf, node, None)
        shelf.locks += 1

    def release(self, shelf: Shelf, node: Node) -> None:
        """Undo one lock on node's path."""
        step = node
        while step.parent is not None:
            copy = step.copies[shelf]
            assert copy.locks > 0
            copy.locks -= 1
            if not copy.locks:
                shelf.locked_pages -= len(copy.pages)
                shelf.offer(step, copy)
            step = step.parent
        assert step.refs > 0
        step.refs -= 1
        shelf.locks -= 1
        self._prune(step)

    def pin(self, shelf: Shelf, namespace: Namespace, key: bytes) -> Node | None:
        """Lock what shelf has of key, for as long as a lease lasts; None if that is nothing. Owes `unpin`."""
        node, at = self.roots.get(namespace), 0
        if node is None:
            return None
        while (child := node.children.get(key[at : at + self._unit])) is not None and shelf in child.copies:
            same = common_length(key, at, child.key, self._unit)
            if same < len(child.key):
                child = self._split(child, same)
            at += same
            node = child
        if node.parent is None:
            return None
        self.lock(shelf, node)
        step = node
        while step.parent is not None:
            copy = step.copies[shelf]
            if not copy.pins:
                shelf.pinned_pages += len(copy.pages)
            copy.pins += 1
            step = step.parent
        return node

    def unpin(self, shelf: Shelf, node: Node) -> None:
        """Undo one `pin`."""
        step = node
        while step.parent is not None:
            copy = step.copies[shelf]
            copy.pins -= 1
            if not copy.pins:
                shelf.pinned_pages -= len(copy.pages)
            step = step.parent
        self.release(shelf, node)

    def use(self, shelf: Shelf, node: Node, priority: int) -> None:
        """A choice found node's path (which it has locked) on shelf: counts as a hit of each node."""
        self._clock += 1
        step = node
        while step.parent is not None:
            copy = step.copies[shelf]
            copy.last_use = self._clock
            copy.hits += 1
            copy.priority = max(copy.priority, priority)
            step = step.parent

    def has_next(self, shelf: Shelf, node: Node, page: bytes) -> bool:
        """Whether shelf has the page (packed tokens) that follows node's path."""
        child = node.children.get(page)
        return child is not None and shelf in child.copies

    def extend(self, shelf: Shelf, node: Node, key: bytes, pages: array[int], priority: int = 0) -> Extension:
        """Add key below node on shelf, and move the caller's lock on node to the end of it.

        key: packed tokens, whole pages, that follow node's path; pages: as many page ids. The tree takes pages[present:] over;
        those that shelf had already (pages[:present]) stay the caller's.
        """
        assert len(key) == len(pages) * self._unit
        self._clock += 1
        start, at, present = node, 0, 0
        while (child := node.children.get(key[at : at + self._unit])) is not None:
            same = common_length(key, at, child.key, self._unit)
            if same < len(child.key):
                child = self._split(child, same)
            if shelf in child.copies:
                present = (at + same) // self._unit
            else:
                self._place(shelf, child, pages[at // self._unit : (at + same) // self._unit])
            at += same
            node = child
        if at < len(key):
            if node is start and self._grows(shelf, node):
                self._grow(shelf, node, key[at:], pages[at // self._unit :])
            else:
                node = self._append(node, key[at:])
                self._place(shelf, node, pages[at // self._unit :])
        self._lock_up_to(shelf, node, start)
        step = node
        while step.parent is not None:
            copy = step.copies[shelf]
            copy.last_use = self._clock
            copy.priority = max(copy.priority, priority)
            step = step.parent
        return Extension(node, present)

    def evict(self, shelf: Shelf, count: int) -> array[int]:
        """Free up to count pages of shelf that nobody uses; returns their ids (fewer if no more can go).

        Cuts from the end of an edge, so it frees exactly what was asked for; a parent left without children there follows.
        """
        freed: array[int] = array("I")
        while len(freed) < count and (out := shelf.next_out()) is not None:
            node, copy = out
            keep = max(0, len(copy.pages) - (count - len(freed)))
            if keep == 0:
                freed.extend(copy.pages)
                self._drop(shelf, node)
                continue
            if node.wanted or node.refs or node.children or node.computing or len(node.copies) > 1:
                self._split(node, keep * self._unit)
                freed.extend(copy.pages)
                self._drop(shelf, node)
            else:
                freed.extend(copy.pages[keep:])
                self._shorten(shelf, node, copy, keep)
        return freed

    def forget(self, shelf: Shelf, node: Node) -> array[int]:
        """Take node's path off shelf, from its end on, as far as nobody else uses it; returns the ids of these pages."""
        freed: array[int] = array("I")
        while (
            node.parent is not None and (copy := node.copies.get(shelf)) is not None and not (copy.locks or copy.kids)
        ):
            freed.extend(copy.pages)
            parent = node.parent
            self._drop(shelf, node)
            node = parent
        return freed

    # --- Parts ------------------------------------------------------------------------------------------------------------

    def _root(self, namespace: Namespace) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._node(namespace, None, b"", 0)
        return root

    def _node(self, namespace: Namespace, parent: Node | None, key: bytes, depth: int) -> Node:
        self._created += 1
        return Node(namespace, parent, key, depth, self._created)

    def _append(self, node: Node, key: bytes) -> Node:
        leaf = self._node(node.namespace, node, key, node.depth + len(key) // self._unit)
        node.children[key[: self._unit]] = leaf
        self.size += 1
        return leaf

    def _split(self, child: Node, length: int) -> Node:
        """Cut child's edge after `length` bytes; the new upper node has the same locks, wishes and copies.

        child stays the deeper end, so whoever holds it keeps the whole path.
        """
        parent = child.parent
        assert parent is not None
        cut = length // self._unit
        upper = self._node(child.namespace, parent, child.key[:length], parent.depth + cut)
        self.size += 1
        upper.wanted, upper.computing = child.wanted, dict(child.computing)
        if child.hashes is not None:
            upper.hashes, child.hashes = child.hashes[:cut], child.hashes[cut:]
        for shelf, copy in child.copies.items():
            above = upper.copies[shelf] = Copy(copy.pages[:cut], copy.created)
            above.kids, above.locks, above.pins, above.hits = 1, copy.locks, copy.pins, copy.hits
            above.last_use, above.priority = copy.last_use, copy.priority
            copy.pages = copy.pages[cut:]
            shelf.copies += 1
        parent.children[upper.key[: self._unit]] = upper
        child.key, child.parent = child.key[length:], upper
        upper.children[child.key[: self._unit]] = child
        if self.waiting is not None:
            self.waiting.split(upper, child)
        return upper

    def _place(self, shelf: Shelf, node: Node, pages: array[int]) -> None:
        """shelf has node from now on."""
        first = not node.copies
        node.copies[shelf] = Copy(pages, self._clock)
        shelf.copies += 1
        shelf.total_pages += len(pages)
        parent = node.parent
        assert parent is not None
        if parent.parent is not None:
            parent.copies[shelf].kids += 1
        node.computing.pop(shelf, None)
        if self.watcher is not None:
            self.watcher.stored(shelf, node, 0)
        if first:
            self.pages += len(pages)
            self._changed(node)

    def _grows(self, shelf: Shelf, node: Node) -> bool:
        """Whether the caller is the only one who knows node, so that a growing output stays one node."""
        if node.parent is None or node.children or node.wanted or node.refs or node.computing or len(node.copies) > 1:
            return False
        return node.copies[shelf].locks == 1

    def _grow(self, shelf: Shelf, node: Node, key: bytes, pages: array[int]) -> None:
        copy, had = node.copies[shelf], len(node.copies[shelf].pages)
        node.key += key
        node.depth += len(pages)
        copy.pages.extend(pages)
        shelf.total_pages += len(pages)
        shelf.locked_pages += len(pages)
        self.pages += len(pages)
        if self.watcher is not None:
            self.watcher.stored(shelf, node, had)

    def _shorten(self, shelf: Shelf, node: Node, copy: Copy, keep: int) -> None:
        if self.watcher is not None:
            self.watcher.removed(shelf, node, keep)
        gone = len(copy.pages) - keep
        node.key, copy.pages = node.key[: keep * self._unit], copy.pages[:keep]
        node.depth -= gone
        if node.hashes is not None:
            del node.hashes[keep:]
        self.pages -= gone
        shelf.total_pages -= gone
        shelf.offer(node, copy)

    def _drop(self, shelf: Shelf, node: Node) -> None:
        """shelf has node no more."""
        copy, parent = node.copies[shelf], node.parent
        if self.watcher is not None:
            self.watcher.removed(shelf, node, 0)
        shelf.withdraw(copy)
        del node.copies[shelf]
        shelf.copies -= 1
        shelf.total_pages -= len(copy.pages)
        assert parent is not None
        if parent.parent is not None:
            above = parent.copies[shelf]
            above.kids -= 1
            shelf.offer(parent, above)
        if not node.copies:
            self.pages -= len(copy.pages)
            self._changed(node)
            self._prune(node)

    def _changed(self, node: Node) -> None:
        if self.waiting is not None:
            self.waiting.changed(node)

    def _lock_up_to(self, shelf: Shelf, node: Node, end: Node | None) -> None:
        """Add a lock on node and its ancestors, short of end. The root is kept by counting who locks a path from it."""
        step: Node | None = node
        while step is not end and step is not None:
            if step.parent is None:
                step.refs += 1
                return
            copy = step.copies[shelf]
            if not copy.locks:
                shelf.locked_pages += len(copy.pages)
                shelf.withdraw(copy)
            copy.locks += 1
            step = step.parent

    def _prune(self, node: Node) -> None:
        """Remove node if nothing needs it, and then its parent, and so on."""
        while node.disposable:
            parent = node.parent
            if parent is None:
                self.roots.pop(node.namespace, None)
                return
            if parent.children.get(node.key[: self._unit]) is not node:
                return  # removed before
            del parent.children[node.key[: self._unit]]
            self.size -= 1
            node = parent

    # --- Questions --------------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents before children."""
        for root in self.roots.values():
            yield from walk(root)

    def check(self) -> None:
        """Raise AssertionError if the tree contradicts itself. Linear in the number of nodes: for tests and for an idle service."""
        size = pages = 0
        shelves: dict[Shelf, list[tuple[Node, Copy]]] = {}
        for node in self.nodes():
            assert node.wanted >= sum(child.wanted for child in node.children.values())
            assert (
                node.wanted == node.own_live + sum(child.wanted for child in node.children.values())
                or self.waiting is None
            )
            assert not node.disposable, "a node that nothing needs was kept"
            if node.parent is None:
                continue
            size += 1
            assert node.key
            assert len(node.key) % self._unit == 0
            assert node.depth == node.parent.depth + len(node.key) // self._unit
            assert node.parent.children[node.key[: self._unit]] is node
            pages += len(node.key) // self._unit if node.copies else 0
            for shelf, copy in node.copies.items():
                assert len(copy.pages) * self._unit == len(node.key)
                assert node.parent.parent is None or shelf in node.parent.copies, "a path with a hole"
                assert shelf not in node.computing
                shelves.setdefault(shelf, []).append((node, copy))
        assert (size, pages) == (self.size, self.pages)
        for shelf, copies in shelves.items():
            shelf.check(copies)
