"""What concerns thousands of requests at once: it is done in slices, so that no call does more than a few hundred, and nobody is forgotten."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from phloem_proto.messages import End, ErrorInfo, FlushReply, Grammar, GrammarSpec, Live, Verdict
from phloem_scheduler.core import CLEARED_PER_PASS, REQUESTS_PER_PASS
from phloem_scheduler.settings import Settings
from phloem_scheduler.slices import Slices

from .fake_worker import FakeWorker, profile
from .world import World

MANY = 3 * REQUESTS_PER_PASS + 100
SPEC = GrammarSpec("regex", "[0-9]+")
JUDGED = Verdict(Grammar("digest", "llguidance", "regex", "5"))


def crowd(count: int = MANY, slots: int = 2, **more: Any) -> tuple[World, list[bytes]]:
    """A world in which so many requests of two gateways have been opened, and few of them run."""
    world = World(Settings(chunk_tokens=64, max_queued=2 * count), profile(pages=512, slots=slots))
    fields: dict[str, Any] = {"max_tokens": 500, "ignore_eos": True, **more}
    return world, [world.open([number, 1, 2, 3, 4], gateway=f"g{number % 2 + 1}", **fields) for number in range(count)]


def live_requests(world: World) -> int:
    return sum(not request.done for request in world.core.ledger.requests.values())


def worked_off(world: World, left: Callable[[], int]) -> list[int]:
    """Decide at once whenever the core asks for it; how many `left` says there were before each time, and at the end."""
    counts = [left()]
    while world.core.next_wakeup(world.now) == world.now:
        world.turn()
        counts.append(left())
    return counts


def assert_in_slices(counts: list[int], slice_size: int) -> None:
    assert all(before - after <= 2 * slice_size for before, after in pairwise(counts))


def test_a_gateway_that_goes_takes_thousands_with_it() -> None:
    world, rids = crowd(2 * MANY)
    world.turn()
    world.core.gateway_gone("g1", world.now)
    counts = worked_off(world, lambda: len(world.core.ledger.requests))
    assert_in_slices([2 * MANY, *counts], REQUESTS_PER_PASS)
    assert list(world.core.ledger.requests) == rids[1::2]


def test_who_is_opened_elsewhere_while_its_gateway_is_cleared_away_goes_on() -> None:
    world, rids = crowd(2 * MANY)
    world.turn()
    world.core.gateway_gone("g1", world.now)
    last = rids[-2]
    world.open([len(rids) - 2, 1, 2, 3, 4], rid=last, attempt=2, gateway="g3", max_tokens=500, ignore_eos=True)
    worked_off(world, lambda: 0)
    assert [rid for rid in world.core.ledger.requests if rid not in rids[1::2]] == [last]


def test_a_gateway_gives_up_thousands_in_its_list() -> None:
    world, rids = crowd(2 * MANY)
    world.turn()
    for _ in range(2):
        world.core.live("g1", Live(()), world.now)
    assert_in_slices([2 * MANY, *worked_off(world, lambda: len(world.core.ledger.requests))], REQUESTS_PER_PASS)
    assert list(world.core.ledger.requests) == rids[1::2]


def test_the_deadlines_of_thousands_pass_at_once() -> None:
    world, rids = crowd(deadline_ms=1000)
    world.turn()
    world.now += 2
    assert_in_slices(worked_off(world, lambda: live_requests(world)), REQUESTS_PER_PASS)
    assert {world.ends[rid, 0].code for rid in rids} == {"deadline"}
    assert len(world.ends) == MANY


def test_no_worker_comes_back_for_thousands() -> None:
    world, rids = crowd()
    world.turn()
    world.core.worker_gone("w0")
    world.turn()
    world.now += 61
    world.turn()
    assert_in_slices([MANY, *worked_off(world, lambda: live_requests(world))], REQUESTS_PER_PASS)
    assert {world.ends[rid, 0].code for rid in rids} == {"unavailable"}


def test_a_worker_that_comes_back_in_the_middle_saves_the_others() -> None:
    world, _ = crowd(slots=64, max_tokens=1)
    world.turn()
    world.core.worker_gone("w0")
    world.turn()
    world.now += 61
    world.turn()
    world.join("w0", world.workers["w0"])
    ended = len(world.ends)
    assert 0 < ended < MANY
    world.finish()
    assert sum(end.reason == "length" for end in world.ends.values()) == MANY - ended
    assert len(world.ends) == MANY


@pytest.mark.parametrize("refused", [False, True])
def test_thousands_wait_for_one_grammar(refused: bool) -> None:
    world, rids = crowd(grammar=SPEC)
    world.turn()
    gone = rids[MANY // 2]
    world.core.verdict(SPEC, Verdict(error=ErrorInfo("grammar_invalid", "no")) if refused else JUDGED)
    world.cancel(gone)
    queued = len(world.core.queue)
    assert queued <= REQUESTS_PER_PASS
    assert_in_slices(worked_off(world, lambda: MANY - len(world.core.queue)), REQUESTS_PER_PASS)
    if refused:
        assert {key for key, end in world.ends.items() if end.code == "grammar_invalid"} == {
            (rid, 0) for rid in rids if rid != gone
        }
        assert world.core.counters.rejected == MANY - 1
    else:
        assert len(world.core.queue) + world.core.running == MANY - 1
        assert world.core.grammars.requests == 0


def test_thousands_leave_one_grammar_that_is_being_judged() -> None:
    world, _ = crowd(grammar=SPEC)
    world.turn()
    assert world.core.grammars.requests == MANY
    world.core.gateway_gone("g1", world.now)
    worked_off(world, lambda: 0)
    assert world.core.grammars.requests == MANY // 2


def test_thousands_move_to_a_tree_of_another_page_size() -> None:
    world, rids = crowd(max_tokens=1)
    world.core.worker_gone("w0")
    world.turn()
    world.join("w0", FakeWorker(profile(page_size=8, pages=512, slots=64)))
    # Some of them end, others are cancelled, while most hang on no tree yet.
    for rid in (rids[5], rids[-5]):
        world.cancel(rid)
    tokens = world.core.queue.tokens
    assert tokens == 5 * (MANY - 2)
    world.finish()
    assert len(world.ends) == MANY - 2


def test_a_flush_empties_a_large_cache_in_parts() -> None:
    pages = 3 * CLEARED_PER_PASS
    world = World(shape=profile(pages=pages, page_size=4, context_length=4 * pages, slots=2))
    for number in range(2):
        rid = world.open([number] * (5 * CLEARED_PER_PASS), max_tokens=1)
        world.finish()
        world.cancel(rid)
    cache = world.core.workers["w0"].cache
    cached = cache.shelf.total_pages
    assert cached > 2 * CLEARED_PER_PASS
    world.core.flush(0, "flush", world.now)
    world.turn()
    assert "flush" not in world.replies
    counts = worked_off(world, lambda: cache.shelf.total_pages)
    assert_in_slices(counts, CLEARED_PER_PASS)
    assert counts[-1] == 0
    assert world.replies["flush"] == FlushReply(flushed_pages=cached)


def test_a_flush_that_is_interrupted_goes_on_later_and_counts_everything() -> None:
    pages = 3 * CLEARED_PER_PASS
    world = World(shape=profile(pages=pages, page_size=4, context_length=4 * pages, slots=2))
    rid = world.open([1] * (8 * CLEARED_PER_PASS), max_tokens=1)
    world.finish()
    world.cancel(rid)
    cached = world.core.workers["w0"].cache.shelf.total_pages
    world.core.flush(60_000, "flush", world.now)
    world.turn()
    rid = world.open([2, 3], max_tokens=2)
    world.turn()
    assert "flush" not in world.replies
    world.finish()
    worked_off(world, lambda: 0)
    assert world.replies["flush"].flushed_pages >= cached
    world.cancel(rid)
    world.core.flush(0, "again", world.now)
    world.finish()
    assert world.replies["again"] == FlushReply(flushed_pages=0)


def test_slices_do_all_steps_in_order_and_no_more_than_a_slice_at_once() -> None:
    done: list[str] = []

    def work(name: str, steps: int) -> Iterator[None]:
        for number in range(steps):
            done.append(f"{name}{number}")
            yield

    slices = Slices(3)
    slices.add(work("a", 4))
    assert done == ["a0", "a1", "a2"]
    slices.add(work("b", 0))
    slices.add(work("c", 3))
    assert len(done) == 3
    slices.go_on()
    assert done[3:] == ["a3", "c0", "c1"]
    slices.go_on()
    slices.go_on()
    assert done[6:] == ["c2"]
    assert not slices


def test_what_the_core_lets_go_of_is_free_without_a_garbage_collection() -> None:
    rng = random.Random(7)
    world = World(Settings(chunk_tokens=32), profile(pages=64, slots=4))
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            rids = [
                world.open([rng.randrange(4) for _ in range(rng.randint(1, 40))], n=rng.randint(1, 2), max_tokens=9)
                for _ in range(8)
            ]
            world.steps(6)
            if rng.random() < 0.2:
                world.core.step_failed("w0", world.worker.step + 1, "it broke")
            for rid in rids:
                world.cancel(rid)
            world.finish()
        world.frames.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [type(one) for one in gc.garbage if type(one).__module__.startswith("phloem_")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []


def test_an_end_in_a_later_slice_is_told_like_any_other() -> None:
    world, rids = crowd(deadline_ms=1000)
    world.now += 2
    world.finish()
    assert all(world.ends[rid, 0] == End("abort", code="deadline", message="the deadline has passed") for rid in rids)
