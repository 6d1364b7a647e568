"""Short words for what requests do to a worker's cache."""

from __future__ import annotations

from phloem_proto.codec import pack_ids
from phloem_scheduler.cache import Cache, Match
from phloem_scheduler.node import TOKEN_BYTES, Namespace
from phloem_scheduler.tree import RadixTree

from .waiting import HERE


def new_cache(pages: int = 64, page_size: int = 1, eviction: str = "lru", reuse: bool = True) -> Cache:
    """A worker's cache on a tree of its own."""
    return Cache(RadixTree(page_size), pages, eviction=eviction, reuse=reuse)


def key(*ids: int) -> bytes:
    """Packed tokens."""
    return pack_ids(ids)


def hold(cache: Cache, ids: bytes, namespace: Namespace = HERE) -> Match:
    """Lock what is cached of ids. Owes a release."""
    unit = TOKEN_BYTES * cache.page_size
    node = cache.tree.want(namespace, ids[: len(ids) // unit * unit])
    match = cache.acquire(node)
    cache.tree.unwant(node)
    return match


def put(cache: Cache, ids: bytes, namespace: Namespace = HERE, priority: int = 0) -> int:
    """A request with these tokens comes, computes what is not there, and is done. Returns how many pages were there."""
    whole = len(ids) // (TOKEN_BYTES * cache.page_size)
    match = hold(cache, ids, namespace)
    found = len(match.pages)
    if found:
        cache.use(match.node, priority)
    own = cache.take(whole - found)
    assert own is not None
    unit = TOKEN_BYTES * cache.page_size
    extension = cache.extend(match.node, ids[found * unit : whole * unit], own, priority)
    cache.give_back(own[: extension.present])
    cache.release(extension.node)
    check(cache)
    return found


def peek(cache: Cache, *ids: int) -> int:
    """How many pages of ids are cached."""
    return cache.peek(HERE, key(*ids))


def check(cache: Cache) -> None:
    """Every invariant of a cache that is alone on its tree."""
    cache.check()
    cache.tree.check()
