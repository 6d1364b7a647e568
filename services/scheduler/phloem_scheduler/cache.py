"""The KV cache of one worker: its shelf of the common radix tree and its page pool, kept in step.

Every page is free, held by one request, or in the tree; these functions are the only ones that move pages between the three.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from .node import Namespace, Node
from .pages import PagePool
from .shelf import Shelf
from .tree import Extension, RadixTree


@dataclass(slots=True)
class Match:
    """A locked path: `pages` (uint32 ids) hold the first `len(pages) * page_size` tokens. Owes `Cache.release(node)`."""

    node: Node
    pages: array[int]


class Cache:
    """Pages `first_page` to `first_page + pages - 1`. With reuse off, nothing enters the tree and every match is empty."""

    def __init__(
        self,
        tree: RadixTree,
        pages: int,
        *,
        name: str = "",
        eviction: str = "lru",
        first_page: int = 0,
        reuse: bool = True,
    ) -> None:
        self.page_size = tree.page_size
        self.tree = tree
        self.pool = PagePool(pages, first_page)
        self.shelf = Shelf(name, eviction)
        self.reuse = reuse
        self.evicted_pages = 0

    @property
    def room(self) -> int:
        """Pages that `take` could supply now: the free ones and those it may evict."""
        return self.pool.free + self.shelf.evictable_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def peek(self, namespace: Namespace, key: bytes) -> int:
        """How many whole pages of key are here. Changes nothing."""
        return self.tree.find(namespace, key, self.shelf)[1]

    def cached(self, node: Node) -> Node:
        """The deepest node of node's path that is here."""
        return self.tree.resident(self.shelf, node)

    def acquire(self, node: Node) -> Match:
        """Lock what is here of node's path."""
        found = self.tree.resident(self.shelf, node)
        self.tree.lock(self.shelf, found)
        return Match(found, self.tree.path_pages(self.shelf, found))

    def use(self, node: Node, priority: int) -> None:
        """A choice reads node's path, which it has locked."""
        self.tree.use(self.shelf, node, priority)

    def release(self, node: Node) -> None:
        """Undo one lock on node's path; its pages stay cached until they are evicted."""
        self.tree.release(self.shelf, node)

    def take(self, count: int, after: int | None = None) -> array[int] | None:
        """Give a request `count` pages, evicting only the shortfall. None, and nothing evicted, if there is no room for all of them.

        after: the last page the request has; the next one is preferred.
        """
        if count > self.room:
            return None
        shortfall = count - self.pool.free
        if shortfall > 0:
            self.evict(shortfall)
        return self.pool.take(count, after)

    def evict(self, count: int) -> int:
        """Free up to `count` cached pages that nobody uses; returns how many went."""
        pages = self.tree.evict(self.shelf, count)
        self.pool.from_tree(pages)
        self.evicted_pages += len(pages)
        return len(pages)

    def forget(self, node: Node) -> None:
        """What is in the pages of node's path is not to be trusted: nobody new may read them."""
        self.pool.from_tree(self.tree.forget(self.shelf, node))

    def give_back(self, pages: array[int]) -> None:
        """A request's own pages become free."""
        self.pool.give_back(pages)

    def has_next(self, node: Node, page: bytes) -> bool:
        """Whether the page (packed tokens) that follows node's path is here."""
        return self.tree.has_next(self.shelf, node, page)

    def extend(self, node: Node, key: bytes, pages: array[int], priority: int = 0) -> Extension:
        """Offer a request's pages to the tree, below node; see RadixTree.extend for what happens to lock and pages."""
        if not self.reuse:
            return Extension(node, len(pages))
        extension = self.tree.extend(self.shelf, node, key, pages, priority)
        self.pool.to_tree(pages[extension.present :])
        return extension

    def flush(self) -> int:
        """Evict all that nobody uses; return how many pages that was."""
        return self.evict(self.shelf.evictable_pages)

    def check(self) -> None:
        """Raise AssertionError if pool and shelf contradict each other or themselves. Linear: for tests and for an idle service."""
        self.pool.check()
        assert self.pool.in_tree == self.shelf.total_pages
        pages = [
            page for node in self.tree.nodes() if self.shelf in node.copies for page in node.copies[self.shelf].pages
        ]
        assert len(set(pages)) == len(pages) == self.shelf.total_pages, "a page is in two nodes"
