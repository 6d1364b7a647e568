"""Which unused pages go when there are too few: the seven policies, exact cuts, cascades, locks, and what waiting choices want."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from phloem_scheduler.cache import Cache
from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.queue import WaitingQueue
from phloem_scheduler.requests import Choice

from .caches import check, hold, key, new_cache, peek, put
from .waiting import waiting_choice


def order(cache: Cache, *firsts: int) -> list[int]:
    """Evict page by page; which paths (by their first token) went, the first to go first. Each path is one page."""
    there, gone = list(firsts), []
    while there:
        assert cache.evict(1) == 1
        check(cache)
        out = [first for first in there if not peek(cache, first)]
        assert len(out) == 1
        there.remove(out[0])
        gone += out
    assert cache.evict(1) == 0
    return gone


# --- The policies -------------------------------------------------------------------------------------------------------


def test_lru_what_was_used_longest_ago_goes_first() -> None:
    cache = new_cache(eviction="lru")
    for first in (1, 2, 3, 1):
        put(cache, key(first))
    assert order(cache, 1, 2, 3) == [2, 3, 1]


def test_mru_what_was_used_last_goes_first() -> None:
    cache = new_cache(eviction="mru")
    for first in (1, 2, 3, 1):
        put(cache, key(first))
    assert order(cache, 1, 2, 3) == [1, 3, 2]


def test_fifo_what_was_made_first_goes_first_however_much_it_is_used() -> None:
    cache = new_cache(eviction="fifo")
    for first in (1, 2, 3, 1, 1, 2):
        put(cache, key(first))
    assert order(cache, 1, 2, 3) == [1, 2, 3]


def test_filo_what_was_made_last_goes_first_however_much_it_is_used() -> None:
    cache = new_cache(eviction="filo")
    for first in (1, 2, 3, 3, 3, 1):
        put(cache, key(first))
    assert order(cache, 1, 2, 3) == [3, 2, 1]


def test_lfu_what_was_found_least_often_goes_first_and_of_equals_what_was_used_longest_ago() -> None:
    cache = new_cache(eviction="lfu")
    for first in (1, 1, 1, 2, 2, 3, 3, 4):
        put(cache, key(first))
    assert order(cache, 1, 2, 3, 4) == [4, 2, 3, 1]


def test_slru_what_was_never_found_again_goes_before_what_was_and_within_both_by_last_use() -> None:
    cache = new_cache(eviction="slru")
    for first in (1, 2, 2, 3, 3, 3, 1, 2, 4, 5):
        put(cache, key(first))
    assert order(cache, 1, 2, 3, 4, 5) == [4, 5, 3, 1, 2]


def test_slru_many_prompts_that_come_once_do_not_drive_out_what_is_found_again() -> None:
    cache = new_cache(pages=10, eviction="slru")
    for _ in range(2):
        put(cache, key(1, 2, 3))
    for once in range(100, 200):
        put(cache, key(once))
    assert peek(cache, 1, 2, 3) == 3


def test_priority_the_lowest_goes_first_and_of_equals_what_was_used_longest_ago() -> None:
    cache = new_cache(eviction="priority")
    for first, priority in ((1, 5), (2, 0), (3, 1), (4, 0), (2, 0)):
        put(cache, key(first), priority=priority)
    assert order(cache, 1, 2, 3, 4) == [4, 2, 3, 1]


def test_priority_the_highest_of_all_who_used_it_counts() -> None:
    cache = new_cache(eviction="priority")
    for first, priority in ((1, 0), (2, 3), (1, 7), (1, 0)):
        put(cache, key(first), priority=priority)
    assert order(cache, 1, 2) == [2, 1]


def test_priority_below_zero_is_lower_than_none() -> None:
    cache = new_cache(eviction="priority")
    for first, priority in ((1, 0), (2, -5), (3, -1), (4, 0)):
        put(cache, key(first), priority=priority)
    assert order(cache, 1, 2, 3, 4) == [2, 3, 1, 4]


@dataclass
class Leaf:
    """What a policy may go by."""

    created: int
    used: int
    hits: int = 0
    priority: int = 0


BY_DEFINITION: dict[str, Callable[[Leaf], tuple[int, ...]]] = {
    "lru": lambda leaf: (leaf.used,),
    "mru": lambda leaf: (-leaf.used,),
    "fifo": lambda leaf: (leaf.created,),
    "filo": lambda leaf: (-leaf.created,),
    "lfu": lambda leaf: (leaf.hits, leaf.used),
    "slru": lambda leaf: (leaf.hits >= 1, leaf.used),
    "priority": lambda leaf: (leaf.priority, leaf.used),
}


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize("seed", range(3))
def test_each_policy_evicts_in_the_order_of_its_definition(eviction: str, seed: int) -> None:
    rng, cache, leaves = random.Random(seed), new_cache(eviction=eviction), dict[int, Leaf]()
    for now in range(600):
        first, priority = rng.randrange(1, 20), rng.randrange(-3, 4)
        if rng.random() < 0.3 and leaves:
            out = min(leaves, key=lambda name: BY_DEFINITION[eviction](leaves[name]))
            del leaves[out]
            assert cache.evict(1) == 1
            assert not peek(cache, out)
            continue
        if first in leaves:
            leaf = leaves[first]
            leaf.used, leaf.hits, leaf.priority = now, leaf.hits + 1, max(leaf.priority, priority)
        else:
            leaves[first] = Leaf(now, now, priority=priority)
        put(cache, key(first), priority=priority)
    assert order(cache, *leaves) == sorted(leaves, key=lambda name: BY_DEFINITION[eviction](leaves[name]))


# --- Hits ---------------------------------------------------------------------------------------------------------------


def test_a_hit_counts_once_and_a_prompt_that_comes_in_chunks_counts_none() -> None:
    cache = new_cache()
    own = cache.take(6)
    assert own is not None
    node = hold(cache, b"").node
    for chunk in range(3):
        node = cache.extend(node, key(chunk * 2, chunk * 2 + 1), own[chunk * 2 : chunk * 2 + 2]).node
    assert {copy.hits for step in cache.tree.nodes() for copy in step.copies.values()} == {0}
    match = hold(cache, key(*range(6)))
    cache.use(match.node, 0)
    assert {copy.hits for step in cache.tree.nodes() for copy in step.copies.values()} == {1}
    cache.release(match.node)
    cache.release(node)


def test_only_the_part_of_a_path_that_is_used_counts_as_used() -> None:
    cache = new_cache(eviction="lfu")
    put(cache, key(1, 2, 3, 4))
    put(cache, key(5))
    put(cache, key(1, 2))
    put(cache, key(5))
    assert cache.evict(2) == 2
    assert (peek(cache, 1, 2, 3, 4), peek(cache, 5)) == (2, 1)


# --- How much -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize("count", range(8))
def test_exactly_as_much_goes_as_was_asked_for_from_the_end_of_a_path(eviction: str, count: int) -> None:
    cache = new_cache(eviction=eviction)
    put(cache, key(1, 2, 3, 4, 5))
    assert cache.evict(count) == min(count, 5)
    check(cache)
    assert peek(cache, 1, 2, 3, 4, 5) == 5 - min(count, 5)


def test_only_the_shortfall_is_evicted() -> None:
    cache = new_cache(pages=8)
    put(cache, key(1, 2, 3))
    put(cache, key(5, 6, 7))
    put(cache, key(1, 2, 3))  # now the other is the oldest
    own = cache.take(4)  # 2 are free
    assert own is not None
    assert (peek(cache, 1, 2, 3), peek(cache, 5, 6, 7), cache.evicted_pages) == (3, 1, 2)
    cache.give_back(own)
    check(cache)


def test_nothing_is_evicted_for_who_can_not_be_served_anyway() -> None:
    cache = new_cache(pages=8)
    put(cache, key(1, 2, 3))
    locked = hold(cache, key(1))
    assert cache.take(8) is None
    assert (peek(cache, 1, 2, 3), cache.evicted_pages) == (3, 0)
    cache.release(locked.node)


def test_what_the_pool_hands_out_after_an_eviction_was_free() -> None:
    """Pages are the unit of a pool, so runs of tokens that are freed and taken are always whole pages."""
    cache = new_cache(pages=6, page_size=4)
    for start in range(0, 400, 10):
        put(cache, key(*range(start, start + 10)))
    assert cache.shelf.total_pages == 6
    own = cache.take(6)
    assert own is not None
    assert sorted(own) == list(range(6))


# --- Trees --------------------------------------------------------------------------------------------------------------


def test_a_parent_follows_once_it_has_no_children_left() -> None:
    cache = new_cache()
    for tail in (3, 4, 5):
        put(cache, key(1, 2, tail))
    assert cache.evict(3) == 3
    check(cache)
    assert peek(cache, 1, 2) == 2
    assert cache.evict(99) == 2
    assert list(cache.tree.nodes()) == []


def test_a_parent_left_alone_takes_its_own_place_in_the_order() -> None:
    cache = new_cache()
    put(cache, key(1, 2))
    put(cache, key(7))
    put(cache, key(1))  # the parent is used once more, its child is not
    assert cache.evict(1) == 1
    assert (peek(cache, 1, 2), peek(cache, 7)) == (1, 1)
    assert cache.evict(1) == 1
    assert (peek(cache, 1, 2), peek(cache, 7)) == (1, 0)


def test_a_locked_path_never_goes_and_the_rest_around_it_does() -> None:
    for eviction in EVICTION:
        cache = new_cache(eviction=eviction)
        for tail in (3, 4, 5):
            put(cache, key(1, 2, tail, tail))
        locked = hold(cache, key(1, 2, 4))
        assert cache.evict(99) == 5
        check(cache)
        assert peek(cache, 1, 2, 4, 4) == 3
        cache.release(locked.node)
        assert cache.evict(99) == 3


def test_what_was_locked_goes_by_its_place_once_the_last_lock_is_gone() -> None:
    cache = new_cache()
    put(cache, key(1))
    first, second = hold(cache, key(1)), hold(cache, key(1))
    put(cache, key(2))
    cache.release(first.node)
    assert cache.evict(1) == 1
    assert (peek(cache, 1), peek(cache, 2)) == (1, 0)
    put(cache, key(3))
    cache.release(second.node)
    assert cache.evict(1) == 1
    assert (peek(cache, 1), peek(cache, 3)) == (0, 1)


# --- Waiting choices ----------------------------------------------------------------------------------------------------


def queue_on(cache: Cache, policy: str = "fcfs") -> WaitingQueue:
    return WaitingQueue(cache.tree, policy, 30.0)


def wait(queue: WaitingQueue, number: int, *prompt: int, **fields: int) -> Choice:
    choice = waiting_choice(number, [*prompt, 99], **fields)  # type: ignore[arg-type]
    queue.add(choice)
    return choice


@pytest.mark.parametrize("eviction", EVICTION)
def test_what_a_waiting_choice_wants_goes_after_all_that_nobody_wants(eviction: str) -> None:
    cache = new_cache(eviction=eviction)
    for first in (1, 2, 3, 4, 5):
        put(cache, key(first, first, first), priority=first)
    put(cache, key(3, 3, 3), priority=9)
    queue = queue_on(cache)
    wait(queue, 1, 2, 2, 2)
    wait(queue, 2, 4, 4, 4)
    for left in range(14, 5, -1):
        assert cache.evict(1) == 1
        check(cache)
        assert cache.shelf.total_pages == left
        assert (peek(cache, 2, 2, 2), peek(cache, 4, 4, 4)) == (3, 3)
    assert cache.evict(99) == 6


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "lof", "random", "priority"])
def test_of_what_is_wanted_that_goes_first_whose_turn_comes_last(policy: str) -> None:
    cache = new_cache()
    queue = queue_on(cache, policy)
    choices = {}
    for first in range(1, 9):
        put(cache, key(first))
        choices[first] = wait(queue, first, first, max_tokens=first * 7 % 10, arrival=first * 5 % 8, priority=first % 2)
    turns = []
    while (choice := queue.first()) is not None:
        turns.append(next(first for first, other in choices.items() if other is choice))
        queue.remove(choice)
    for choice in choices.values():
        queue.add(choice)
    assert order(cache, *range(1, 9)) == turns[::-1]


def test_lpm_a_long_prefix_that_is_next_stays_and_a_short_one_that_came_earlier_goes() -> None:
    cache = new_cache(pages=1024)
    put(cache, key(*range(600)))
    put(cache, key(1000))
    queue = queue_on(cache, "lpm")
    early = wait(queue, 1, 1000, arrival=0)
    next_one = wait(queue, 2, *range(600), arrival=10)  # its cached tokens are worth 16 seconds
    assert queue.first() is next_one
    assert cache.evict(1) == 1
    assert (peek(cache, *range(600)), peek(cache, 1000)) == (600, 0)
    assert early.node is not None


def test_what_is_below_the_end_of_a_wish_is_not_wanted() -> None:
    cache = new_cache()
    put(cache, key(1, 2, 3, 4))
    put(cache, key(7))
    queue = queue_on(cache)
    wait(queue, 1, 1, 2)
    assert cache.evict(2) == 2
    assert (peek(cache, 1, 2, 3, 4), peek(cache, 7)) == (2, 1)
    assert cache.evict(1) == 1
    assert (peek(cache, 1, 2, 3, 4), peek(cache, 7)) == (2, 0)


def test_a_choice_that_leaves_takes_its_protection_with_it() -> None:
    cache = new_cache()
    put(cache, key(1))
    put(cache, key(2))
    queue = queue_on(cache)
    first, second = wait(queue, 1, 1), wait(queue, 2, 1)
    queue.remove(first)
    queue.remove(second)
    assert order(cache, 1, 2) == [1, 2]


def test_a_path_that_several_want_has_the_place_of_the_first_of_those_still_there() -> None:
    cache = new_cache()
    queue = queue_on(cache)
    for first in (1, 2):
        put(cache, key(first))
    early = wait(queue, 1, 1, arrival=0)
    wait(queue, 2, 1, arrival=20)
    wait(queue, 3, 2, arrival=10)
    assert cache.evict(1) == 1
    assert (peek(cache, 1), peek(cache, 2)) == (1, 0)
    put(cache, key(2))
    queue.remove(early)
    assert cache.evict(1) == 1
    assert (peek(cache, 1), peek(cache, 2)) == (0, 1)


def test_what_was_evicted_although_it_is_wanted_is_computed_again_by_who_waited_for_it() -> None:
    cache = new_cache(page_size=2)
    put(cache, key(1, 2, 3, 4))
    queue = queue_on(cache, "lpm")
    choice = wait(queue, 1, 1, 2, 3, 4)
    assert cache.evict(1) == 1
    match = hold(cache, key(1, 2, 3, 4))
    assert len(match.pages) == 1
    cache.release(match.node)
    assert cache.flush() == 1
    assert queue.first() is choice
    queue.remove(choice)
    assert list(cache.tree.nodes()) == []
