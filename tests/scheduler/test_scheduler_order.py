"""In what order waiting choices are picked."""

from __future__ import annotations

import gc
import random
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest

from phloem_bus.errors import ConfigError
from phloem_scheduler.cache import Cache
from phloem_scheduler.config import SchedulerConfig
from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES, credit
from phloem_scheduler.queue import WaitingQueue
from phloem_scheduler.requests import Choice
from phloem_scheduler.tree import RadixTree

from .caches import key, put
from .forest import Forest
from .waiting import waiting_choice

# Ageing so slow that any cached page outweighs some seconds.
DAY = 86_400.0


@dataclass
class Line:
    """A queue, and a worker's cache on the same tree."""

    policy: str
    ageing_s: float = 30.0
    page_size: int = 1
    pages: int = 4096
    reuse: bool = True
    tree: RadixTree = field(init=False)
    queue: WaitingQueue = field(init=False)
    cache: Cache = field(init=False)
    opened: int = 0

    def __post_init__(self) -> None:
        self.tree = RadixTree(self.page_size)
        self.queue = WaitingQueue(self.tree, self.policy, self.ageing_s, self.reuse)
        self.cache = Cache(self.tree, self.pages)

    def wait(self, *prompt: int, **fields: Any) -> Choice:
        """A choice with this prompt (and one token more) waits."""
        self.opened += 1
        choice = waiting_choice(self.opened, [*prompt, 99], **fields)
        self.queue.add(choice)
        return choice

    def compute(self, choice: Choice) -> object:
        """A row that is about to compute choice's prompt; `choice` waits no more."""
        row = object()
        assert choice.node is not None
        self.tree.lock(self.cache.shelf, self.tree.resident(self.cache.shelf, choice.node))
        self.tree.compute(self.cache.shelf, choice.node, row)
        return row

    def drain(self) -> list[Choice]:
        """Pick until nobody can be picked."""
        picked = []
        while (choice := self.queue.first()) is not None:
            self.queue.remove(choice)
            picked.append(choice)
        return picked


# --- Against brute force ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_the_first_is_who_is_first_by_looking_at_everybody(policy: str, seed: int) -> None:
    forest = Forest(
        seed,
        page_size=(1, 4)[seed % 2],
        shelves=1 + seed % 3,
        policy=policy,
        ageing_s=(400.0, 4.0, 4000.0)[seed % 3],
        most_waiting=40,
        most_users=4,
    )
    for _ in range(400):
        forest.step()
        forest.check(fully=False)
    while (choice := forest.queue.first()) is not None:  # all that can be picked, one by one
        assert choice is forest.first()
        forest.queue.remove(choice)
        forest.choices.remove(choice)
        forest.check(fully=False)
    forest.empty()


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(100, 130))
def test_the_first_is_who_is_first_by_looking_at_everybody_at_length(policy: str, seed: int) -> None:
    forest = Forest(seed, shelves=1 + seed % 3, policy=policy, ageing_s=400.0, most_waiting=60, most_users=5)
    for _ in range(8_000):
        forest.step()
        forest.check(fully=False)
    forest.empty()


# --- Longest prefix first -----------------------------------------------------------------------------------------------


def test_lpm_picks_the_longest_cached_prefix_first_and_of_equals_the_earliest() -> None:
    line = Line("lpm", ageing_s=DAY)
    put(line.cache, key(*range(1, 9)))
    none = line.wait(50, 51)
    two = line.wait(1, 2, 50)
    all_of_it = line.wait(*range(1, 9))
    two_later = line.wait(1, 2, 51)
    five = line.wait(1, 2, 3, 4, 5, 50)
    assert line.drain() == [all_of_it, five, two, two_later, none]


def test_lpm_follows_what_enters_and_leaves_the_cache_while_choices_wait() -> None:
    line = Line("lpm", ageing_s=DAY)
    first, second = line.wait(1, 2, 3), line.wait(5, 6, 7)
    assert line.queue.first() is first
    put(line.cache, key(5, 6))
    assert line.queue.first() is second
    put(line.cache, key(1, 2, 3))
    assert line.queue.first() is first
    line.cache.flush()
    assert line.drain() == [first, second]


def test_lpm_holds_at_any_number_of_waiting_choices() -> None:
    line = Line("lpm")
    put(line.cache, key(*range(1000)))
    lengths = list(range(700))
    random.Random(3).shuffle(lengths)
    choices = {length: line.wait(*range(length), 5000, arrival=0) for length in lengths}
    assert line.drain() == [choices[length] for length in range(699, -1, -1)]


def test_lpm_compares_the_longest_match_on_any_worker() -> None:
    line = Line("lpm", ageing_s=DAY)
    other = Cache(line.tree, 64)
    put(line.cache, key(1, 2))
    put(other, key(5, 6, 7))
    here, there = line.wait(1, 2, 3), line.wait(5, 6, 7)
    assert line.drain() == [there, here]


def test_without_a_cache_lpm_is_first_come_first_served() -> None:
    line = Line("lpm", reuse=False)
    choices = [line.wait(1, 2, 3, arrival=arrival) for arrival in (3, 1, 2)]
    assert line.drain() == [choices[1], choices[2], choices[0]]


def test_half_of_the_credit_is_earned_by_512_cached_tokens_and_all_of_it_by_none() -> None:
    assert credit(0, 30.0) == 0
    assert credit(512, 30.0) == 15.0
    assert credit(10_000_000, 30.0) < 30.0
    assert all(credit(tokens + 1, 30.0) > credit(tokens, 30.0) for tokens in range(0, 200_000, 97))


@pytest.mark.parametrize("page_size", [1, 16])
def test_ageing_weighs_cached_tokens_whatever_the_page_size(page_size: int) -> None:
    """512 cached tokens are worth 15 of 30 seconds: who came 14 later goes first, who came 16 later does not."""
    line = Line("lpm", page_size=page_size)
    put(line.cache, key(*range(512)))
    miss = line.wait(*range(600, 632), arrival=100)
    soon = line.wait(*range(512), arrival=114)
    late = line.wait(*range(512), arrival=116)
    assert line.drain() == [soon, miss, late]


# --- Other orders -------------------------------------------------------------------------------------------------------


def test_fcfs_goes_by_when_the_request_arrived_not_by_when_it_was_opened_or_what_is_cached() -> None:
    line = Line("fcfs")
    put(line.cache, key(1, 2, 3))
    late, early, same = line.wait(1, 2, 3, arrival=9), line.wait(7, arrival=4), line.wait(8, arrival=4)
    assert line.drain() == [early, same, late]


def test_lof_picks_who_may_still_draw_most() -> None:
    line = Line("lof")
    small, large, nearly_done, equal = (
        line.wait(1, max_tokens=5),
        line.wait(2, max_tokens=50),
        line.wait(3, max_tokens=60, output=57),
        line.wait(4, max_tokens=50),
    )
    assert line.drain() == [large, equal, small, nearly_done]


def test_by_lot_is_neither_arrival_nor_its_reverse_and_the_same_for_a_choice_whenever_it_waits() -> None:
    line = Line("random")
    choices = [line.wait(number) for number in range(40)]
    first = line.drain()
    assert sorted(choice.request.number for choice in first) == list(range(1, 41))
    assert first not in (choices, choices[::-1])
    for choice in reversed(first):
        line.queue.add(choice)
    assert line.drain() == first


@pytest.mark.parametrize("policy", POLICIES)
def test_request_priority_beats_every_policy(policy: str) -> None:
    line = Line(policy)
    put(line.cache, key(1, 2, 3, 4))
    low = [line.wait(1, 2, 3, 4, 5, arrival=0, max_tokens=100, priority=-1) for _ in range(3)]
    none = line.wait(1, 2, 3, 4, 6, arrival=1, max_tokens=90)
    high = line.wait(70, 71, arrival=50, max_tokens=1, priority=2)
    picked = line.drain()
    assert picked[:2] == [high, none]
    assert sorted(choice.request.number for choice in picked[2:]) == [choice.request.number for choice in low]


def test_priority_alone_is_first_come_first_served_among_equals() -> None:
    line = Line("priority")
    choices = [
        line.wait(1, priority=priority, arrival=arrival) for priority, arrival in ((0, 5), (3, 9), (0, 2), (3, 7))
    ]
    assert line.drain() == [choices[3], choices[1], choices[2], choices[0]]


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--policy.*fcfs.*not 'shortest'") as problem:
        SchedulerConfig(policy="shortest")
    assert all(name in str(problem.value) for name in POLICIES)


def test_an_unknown_eviction_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--eviction.*lru.*not 'oldest'") as problem:
        SchedulerConfig(eviction="oldest")
    assert all(name in str(problem.value) for name in EVICTION)


# --- Depth first --------------------------------------------------------------------------------------------------------


def test_dfs_weight_goes_through_the_heaviest_branch_to_its_end() -> None:
    line = Line("dfs-weight")
    light = [line.wait(1, 2, tail) for tail in (10, 11)]
    heavy = [line.wait(5, 6, tail) for tail in (10, 11, 12)]
    assert line.drain() == heavy + light


def test_dfs_weight_picks_what_is_below_a_node_before_the_nodes_own() -> None:
    line = Line("dfs-weight")
    own = [line.wait(1, 2) for _ in range(3)]
    below = line.wait(1, 2, 3)
    assert line.drain() == [below, *own]


def test_dfs_weight_stays_in_a_branch_although_another_has_become_heavier() -> None:
    line = Line("dfs-weight")
    first = [line.wait(1, tail) for tail in range(10, 13)]
    other = [line.wait(5, tail) for tail in range(10, 12)]
    assert line.queue.first() is first[0]
    line.queue.remove(first[0])
    other += [line.wait(5, tail) for tail in range(12, 20)]
    assert line.drain() == first[1:] + other


def test_dfs_weight_takes_the_heavier_of_the_branches_that_a_split_makes() -> None:
    """Nobody has gone into the branch yet, so the one that was there first has no right to be first."""
    line = Line("dfs-weight")
    early = line.wait(1, 2, 3, 4)
    heavy = [line.wait(1, 2, 7, tail) for tail in (10, 11)]
    assert line.drain() == [*heavy, early]


def test_dfs_weight_counts_only_who_can_be_picked() -> None:
    line = Line("dfs-weight")
    heavy = [line.wait(1, 2, tail) for tail in (10, 11, 12)]
    light = line.wait(5, 6)
    row = line.compute(heavy[0])
    node = heavy[0].node
    assert node is not None
    assert line.queue.first() is light
    line.tree.leave(line.cache.shelf, node, row)
    line.queue.remove(light)
    assert line.drain() == heavy


def test_dfs_weight_walks_each_priority_for_itself() -> None:
    line = Line("dfs-weight")
    low = [line.wait(1, tail) for tail in range(10, 15)]
    high = [line.wait(5, 10, priority=1), line.wait(1, 20, priority=1), line.wait(1, 21, priority=1)]
    assert line.drain() == [high[1], high[2], high[0], *low]


# --- Who can be picked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_who_needs_what_a_row_computes_is_not_looked_at_until_it_is_there(policy: str) -> None:
    line = Line(policy)
    leader, sibling, child = line.wait(1, 2, 3), line.wait(1, 2, 4), line.wait(1, 2, 3, 5)
    other = line.wait(7, priority=-5)
    node = leader.node
    assert node is not None
    row = line.compute(leader)
    line.queue.remove(leader)
    assert line.queue.first() is other  # both others need what is being computed
    root = line.tree.resident(line.cache.shelf, node)
    line.tree.extend(line.cache.shelf, root, key(1, 2), array("I", (0, 1)))
    assert line.queue.first() is sibling  # 1, 2 is there; 3 is not
    line.queue.remove(sibling)
    assert line.queue.first() is other
    line.tree.leave(line.cache.shelf, node, row)
    assert line.queue.first() is child


@pytest.mark.parametrize("policy", POLICIES)
def test_what_one_worker_has_another_may_be_computing(policy: str) -> None:
    line = Line(policy)
    other = Cache(line.tree, 64)
    choice = line.wait(1, 2, 3)
    node = choice.node
    assert node is not None
    line.compute(choice)
    assert line.queue.first() is None
    put(other, key(1, 2, 3))
    assert line.queue.first() is choice
    other.flush()
    assert line.queue.first() is None
    assert len(line.queue) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_set_aside_is_not_looked_at_and_still_waits(policy: str) -> None:
    line = Line(policy)
    first, second = line.wait(1, 2, max_tokens=9), line.wait(1, 2, max_tokens=8)
    chosen = line.queue.first()
    assert chosen is not None
    line.queue.set_aside(chosen)
    assert line.queue.first() is (second if chosen is first else first)
    assert len(line.queue) == 2
    line.queue.back(chosen)
    assert line.queue.first() is chosen
    line.queue.set_aside(chosen)
    line.queue.remove(chosen)  # it may end meanwhile
    line.queue.back(chosen)
    assert line.drain() == [second if chosen is first else first]
    assert (len(line.queue), line.tree.size) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_again_is_at_its_former_place(policy: str) -> None:
    line = Line(policy)
    choices = [line.wait(number % 7, number, max_tokens=number % 5) for number in range(30)]
    order = line.drain()
    again = random.Random(1).sample(choices, len(choices))
    for choice in again:
        line.queue.add(choice)
    if policy != "dfs-weight":  # its order depends on what else waits, and which branch was older
        assert line.drain() == order
    else:
        assert len(line.drain()) == len(order)


# --- Cost ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_cancels_leave_nothing_behind_while_others_wait(policy: str) -> None:
    """Choices come and go on the paths of some that stay, and what is cached comes and goes: nothing piles up."""
    line, rng = Line(policy, pages=8), random.Random(1)
    for number in range(30):
        line.wait(number % 3, number % 5, arrival=-1, max_tokens=1000, priority=number % 2)

    def churn(times: int) -> int:
        for number in range(times):
            prompt = (rng.randrange(4), rng.randrange(5), *([rng.randrange(9)] * (number % 2)))
            gone = line.wait(*prompt, arrival=rng.randrange(100), max_tokens=rng.randrange(100), priority=number % 2)
            if number % 7 == 0:
                line.queue.first()
            if number % 5 == 0:
                put(line.cache, key(*prompt))
            line.queue.remove(gone)
        gc.collect()
        return len(gc.get_objects())

    # Some that are gone may be kept for a while, never a share of all that ever came.
    settled = churn(1_500)
    assert churn(6_000) < settled + 5_000
    line.tree.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_picking_does_not_cost_more_when_many_wait(policy: str) -> None:
    """Ten thousand waiting choices instead of a hundred: a pick takes at most a few times as long (a sort would take 100 times)."""

    def seconds_at(count: int) -> float:
        line, rng = Line(policy), random.Random(1)
        put(line.cache, key(*range(50)))
        for _ in range(count):
            line.wait(*range(rng.randrange(50)), rng.randrange(1000), arrival=rng.randrange(50))
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(60):
                choice = line.queue.first()
                assert choice is not None
                line.queue.remove(choice)
                line.queue.add(choice)
            best = min(best, time.process_time() - start)
        return best

    assert seconds_at(10_000) < 12 * seconds_at(100)
