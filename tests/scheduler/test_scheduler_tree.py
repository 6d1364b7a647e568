"""The radix tree: matching, splits, locks, several workers, and what it costs, case by case."""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array

import pytest

from phloem_scheduler.cache import Cache
from phloem_scheduler.node import TOKEN_BYTES, common_length
from phloem_scheduler.shelf import Shelf
from phloem_scheduler.tree import RadixTree

from .caches import check, hold, key, new_cache, peek, put
from .waiting import HERE

# --- Keys ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit_tokens", [1, 4, 64])
@pytest.mark.parametrize("differs_at", [0, 1, 2, 63, 64, 65, 127, 128, 1000, 1999, 2000])
def test_the_common_beginning_of_two_keys_is_whole_pages(unit_tokens: int, differs_at: int) -> None:
    left = list(range(2000))
    right = [*left[:differs_at], 999_999, *left[differs_at + 1 :]][:2000] if differs_at < 2000 else left
    same = common_length(key(7, *left), TOKEN_BYTES, key(*right), unit_tokens * TOKEN_BYTES)
    assert same == min(differs_at, 2000) // unit_tokens * unit_tokens * TOKEN_BYTES


def test_the_common_beginning_is_right_for_every_length_and_place() -> None:
    for length in range(20):
        for other in range(20):
            for differs_at in range(min(length, other) + 1):
                left, right = [1] * length, [1] * other
                if differs_at < other:
                    right[differs_at] = 2
                for unit in (1, 2, 3):
                    same = common_length(key(*left), 0, key(*right), unit * TOKEN_BYTES) // TOKEN_BYTES
                    assert same == min(differs_at, length, other) // unit * unit


def test_a_difference_in_the_last_byte_of_a_token_counts() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3))
    assert peek(cache, 1, 2, 3 + (1 << 24)) == 2


def test_tokens_that_begin_in_the_middle_of_others_do_not_match() -> None:
    """Keys are bytes, but only whole pages at page boundaries are compared."""
    cache = new_cache()
    put(cache, (key(0x01020304, 0x05060708)))
    shifted = (b"\x00" + key(0x01020304, 0x05060708))[:8]
    assert cache.peek(HERE, shifted) == 0


# --- Finding ------------------------------------------------------------------------------------------------------------


def test_a_full_a_partial_and_a_missing_prefix() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3, 4))
    assert [peek(cache, *ids) for ids in ((1, 2, 3, 4), (1, 2, 9), (9,), (), (1, 2, 3, 4, 5))] == [4, 2, 0, 0, 4]


def test_asking_changes_nothing() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3, 4))
    put(cache, key(5, 6))
    before = list(cache.tree.nodes())
    for ids in ((1, 2, 9), (1, 2, 3, 4, 5), (7,)):
        peek(cache, *ids)
    assert list(cache.tree.nodes()) == before
    assert cache.evict(1) == 1
    assert (peek(cache, 1, 2, 3, 4), peek(cache, 5, 6)) == (3, 2)  # nor who is the oldest


def test_what_was_cached_already_is_not_taken_again() -> None:
    cache = new_cache()
    assert [put(cache, key(*ids)) for ids in ((1, 2, 3), (1, 2, 4, 5), (1, 2, 3))] == [0, 2, 3]
    assert cache.shelf.total_pages == 5


def test_queries_that_diverge_split_but_keep_the_total() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3, 4, 5, 6, 7, 8))
    put(cache, key(1, 2, 9, 10))
    for query in (key(1, 2, 3, 4, 0), key(1, 2, 3, 4, 5, 6, 0)):
        cache.release(hold(cache, query).node)
        check(cache)
        assert cache.shelf.total_pages == cache.tree.pages == 10


@pytest.mark.parametrize(("page_size", "tokens"), [(1, 5), (2, 5), (4, 6), (16, 15), (16, 33)])
def test_only_whole_pages_enter_and_match(page_size: int, tokens: int) -> None:
    cache = new_cache(page_size=page_size)
    put(cache, key(*range(tokens)))
    assert cache.shelf.total_pages == tokens // page_size
    assert peek(cache, *range(tokens)) == tokens // page_size
    assert peek(cache, *range(tokens - 1)) == (tokens - 1) // page_size


def test_a_match_gives_the_pages_that_were_inserted() -> None:
    cache = new_cache(page_size=2)
    own = cache.take(3)
    assert own is not None
    node = cache.extend(hold(cache, b"").node, key(1, 2, 3, 4, 5, 6), own).node
    match = hold(cache, key(1, 2, 3, 4, 7, 8))
    assert match.pages == own[:2]
    cache.release(match.node)
    cache.release(node)
    check(cache)


def test_namespaces_never_share_and_never_collide() -> None:
    cache = new_cache()
    spaces = [("", ""), ("bc", "a"), ("c", "ab"), ("a", "bc"), ("", "abc"), ("abc", "")]
    for space in spaces:
        assert cache.peek(space, key(1, 2, 3)) == 0
        put(cache, key(1, 2, 3), space)
    assert all(cache.peek(space, key(1, 2, 3)) == 3 for space in spaces)
    assert cache.shelf.total_pages == 18
    cache.flush()
    assert list(cache.tree.nodes()) == []


# --- Locks --------------------------------------------------------------------------------------------------------------


def test_a_lock_takes_its_path_from_what_can_be_evicted_and_gives_it_back() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3))
    assert (cache.shelf.evictable_pages, cache.shelf.locked_pages) == (3, 0)
    first, second = hold(cache, key(1, 2, 3)).node, hold(cache, key(1, 2, 3)).node
    assert (cache.shelf.evictable_pages, cache.shelf.locked_pages) == (0, 3)
    cache.release(first)
    assert (cache.shelf.evictable_pages, cache.shelf.locked_pages) == (0, 3)
    cache.release(second)
    assert (cache.shelf.evictable_pages, cache.shelf.locked_pages) == (3, 0)


def test_repeated_locks_leak_nothing() -> None:
    cache = new_cache(page_size=2)
    put(cache, key(*range(8)))
    for _ in range(100):
        match = hold(cache, key(*range(8)))
        cache.use(match.node, 0)
        cache.release(match.node)
    assert (cache.shelf.locks, cache.shelf.locked_pages, cache.shelf.evictable_pages) == (0, 0, 4)
    check(cache)


def test_a_split_keeps_the_lock_of_the_whole_path() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3, 4))
    long = hold(cache, key(1, 2, 3, 4)).node
    short = hold(cache, key(1, 2, 9)).node
    cache.release(long)
    assert cache.shelf.locked_pages == 2
    assert cache.evict(99) == 2
    cache.release(short)
    assert cache.shelf.locked_pages == 0


def test_a_split_keeps_the_hits_the_priority_and_the_age_of_both_halves() -> None:
    for eviction in ("lru", "lfu", "slru", "priority", "fifo"):
        cache = new_cache(eviction=eviction)
        put(cache, key(1, 2, 3, 4), priority=0)
        put(cache, key(5, 6), priority=3)
        put(cache, key(5, 6), priority=3)
        put(cache, key(1, 2), priority=1)  # splits the first
        cache.release(hold(cache, key(5, 7)).node)  # and the second, which nobody uses by that
        assert cache.evict(2) == 2
        assert (peek(cache, 1, 2, 3, 4), peek(cache, 5, 6)) == (2, 2), eviction


def test_a_growing_output_stays_one_node_until_somebody_else_uses_it() -> None:
    cache = new_cache()
    node = hold(cache, b"").node
    for token in range(20):
        own = cache.take(1)
        assert own is not None
        node = cache.extend(node, key(token), own).node
    assert cache.tree.size == 1
    other = hold(cache, key(*range(20))).node
    own = cache.take(1)
    assert own is not None
    grown = cache.extend(node, key(20), own).node
    assert cache.tree.size == 2
    check(cache)
    cache.release(grown)
    assert cache.shelf.locked_pages == 20
    cache.release(other)
    check(cache)


def test_two_requests_that_computed_the_same_pages_keep_one_copy() -> None:
    cache = new_cache()
    first, second = cache.take(3), cache.take(3)
    assert first is not None
    assert second is not None
    one = cache.extend(hold(cache, b"").node, key(1, 2, 3), first)
    two = cache.extend(hold(cache, b"").node, key(1, 2, 3), second)
    assert (one.present, two.present) == (0, 3)
    assert cache.tree.path_pages(cache.shelf, two.node) == first
    assert cache.pool.held == 3
    cache.give_back(second)
    cache.release(one.node)
    cache.release(two.node)
    check(cache)


def test_of_a_path_that_is_there_in_part_only_the_rest_is_taken_over() -> None:
    cache = new_cache()
    put(cache, key(1, 2))
    own = cache.take(4)
    assert own is not None
    extension = cache.extend(hold(cache, b"").node, key(1, 2, 3, 4), own)
    assert extension.present == 2
    cache.give_back(own[:2])
    assert cache.tree.path_pages(cache.shelf, extension.node)[2:] == own[2:]
    cache.release(extension.node)
    check(cache)


def test_with_reuse_off_nothing_is_kept() -> None:
    cache = new_cache(reuse=False)
    own = cache.take(3)
    assert own is not None
    extension = cache.extend(hold(cache, key(1, 2, 3)).node, key(1, 2, 3), own)
    assert extension.present == 3
    cache.give_back(own)
    cache.release(extension.node)
    match = hold(cache, key(1, 2, 3))
    assert match.pages == array("I")
    assert (cache.shelf.total_pages, cache.pool.free) == (0, 64)
    cache.release(match.node)
    check(cache)


# --- Wishes -------------------------------------------------------------------------------------------------------------


def test_a_wish_makes_a_path_that_no_worker_has_and_takes_it_away_again() -> None:
    tree = RadixTree(2)
    first = tree.want(HERE, key(1, 2, 3, 4))
    second = tree.want(HERE, key(1, 2, 5, 6))
    assert (tree.size, tree.pages) == (3, 0)
    assert [node.wanted for node in tree.nodes()].count(2) == 2  # the root and what they share
    tree.check()
    tree.unwant(first)
    tree.check()
    tree.unwant(second)
    assert (tree.size, tree.roots) == (0, {})


def test_who_computes_a_path_keeps_it_although_nobody_waits_for_it_any_more() -> None:
    tree, shelf = RadixTree(1), Shelf()
    node = tree.want(HERE, key(1, 2, 3))
    root = tree.resident(shelf, node)
    tree.lock(shelf, root)
    tree.compute(shelf, node, "row")
    tree.unwant(node)
    tree.check()
    assert tree.size == 1
    extension = tree.extend(shelf, root, key(1, 2), array("I", (7, 8)))
    assert [shelf in step.computing for step in tree.nodes()] == [
        False,
        False,
        True,
    ]  # the root, what is there, the rest
    tree.leave(shelf, node, "row")
    tree.release(shelf, extension.node)
    tree.check()
    assert (tree.size, tree.pages) == (1, 2)


def test_evicting_what_is_wanted_leaves_the_wish() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3))
    node = cache.tree.want(HERE, key(1, 2, 3))
    cache.flush()
    check(cache)
    assert (cache.shelf.total_pages, cache.tree.pages, cache.tree.size) == (0, 0, 1)
    put(cache, key(1, 2, 3))
    assert cache.cached(node) is node
    cache.tree.unwant(node)
    check(cache)


# --- Several workers ----------------------------------------------------------------------------------------------------


def test_each_worker_has_its_own_pages_of_one_path() -> None:
    tree = RadixTree(1)
    left, right = Cache(tree, 16), Cache(tree, 16, first_page=100)
    put(left, key(1, 2, 3, 4))
    put(right, key(1, 2, 9))
    assert [peek(cache, 1, 2, 3, 4) for cache in (left, right)] == [4, 2]
    assert [peek(cache, 1, 2, 9) for cache in (left, right)] == [2, 3]
    assert (tree.pages, left.shelf.total_pages, right.shelf.total_pages) == (5, 4, 3)
    match = hold(right, key(1, 2, 3, 4))
    assert list(match.pages) == [100, 101]
    right.release(match.node)


def test_a_lock_on_one_worker_keeps_nothing_on_another() -> None:
    tree = RadixTree(1)
    left, right = Cache(tree, 16), Cache(tree, 16)
    for cache in (left, right):
        put(cache, key(1, 2, 3, 4))
    match = hold(left, key(1, 2, 3, 4))
    assert right.flush() == 4
    assert left.flush() == 0
    tree.check()
    assert (peek(left, 1, 2, 3, 4), peek(right, 1, 2, 3, 4)) == (4, 0)
    left.release(match.node)


def test_cutting_a_path_on_one_worker_leaves_it_whole_on_another() -> None:
    tree = RadixTree(1)
    left, right = Cache(tree, 16), Cache(tree, 16)
    for cache in (left, right):
        put(cache, key(1, 2, 3, 4))
    assert left.evict(1) == 1
    tree.check()
    assert [peek(cache, 1, 2, 3, 4) for cache in (left, right)] == [3, 4]
    assert tree.pages == 4
    put(left, key(1, 2, 3, 4))
    tree.check()
    assert [peek(cache, 1, 2, 3, 4) for cache in (left, right)] == [4, 4]


# --- Cost ---------------------------------------------------------------------------------------------------------------


def test_ten_thousand_sequences_share_a_long_prefix_in_little_memory() -> None:
    """The shared 10,000 tokens are stored once: each of the others costs what it adds (100 tokens), not what it shares."""
    tree, shelf = RadixTree(page_size=1), Shelf()
    shared = key(*range(10_000))
    root = tree.want(HERE, b"")
    tree.lock(shelf, root)
    trunk = tree.extend(shelf, root, shared, array("I", range(10_000))).node
    tracemalloc.start()
    for number in range(2_000):
        tree.lock(shelf, trunk)
        node = tree.extend(shelf, trunk, key(1_000_000 + number, *range(99)), array("I", range(100))).node
        tree.release(shelf, node)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert shelf.total_pages == tree.pages == 10_000 + 2_000 * 100
    assert (
        used < 2_000 * 2_500
    )  # 800 bytes of key and pages each, the node, its copy and its place among those that may go


@pytest.mark.parametrize("waiting", [False, True])
def test_work_per_operation_does_not_grow_with_the_tree(waiting: bool) -> None:
    """Operations at 20,000 paths take at most a few times those at 200, eviction included (linear ones would take 100 times)."""

    def seconds_at(paths: int) -> float:
        tree, shelf, rng = RadixTree(page_size=1), Shelf(), random.Random(1)

        def visit(number: int) -> None:
            node = tree.want(HERE, key(rng.randrange(1 << 30), number))
            root = tree.resident(shelf, node)
            tree.lock(shelf, root)
            tree.compute(shelf, node, visit)
            end = tree.extend(shelf, root, node.key, array("I", (0, 1))).node
            tree.leave(shelf, node, visit)
            tree.release(shelf, end)
            if not waiting:
                tree.unwant(node)

        for number in range(paths):
            visit(number)
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for number in range(200):
                visit(number)
                tree.evict(shelf, 2)
            best = min(best, time.process_time() - start)
        return best

    assert seconds_at(20_000) < 12 * seconds_at(200)


def test_a_page_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size"):
        RadixTree(0)
