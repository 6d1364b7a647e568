"""Requests that share a prefix, step by step: it is computed once, nobody waits for it without need, and nothing leaks whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import Plan, Result, RowFailure, SamplingParams, SlotOpen
from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES
from phloem_scheduler.settings import Settings

from .fake_worker import expected, profile
from .world import World

SHARED = [1 + at % 30 for at in range(64)]


def text(prompt: list[int], max_tokens: int) -> list[int]:
    return expected(prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))[0]


def opens(world: World) -> list[list[SlotOpen]]:
    """The slots that each plan with rows opens."""
    return [list(plan.opens) for plan in world.sent if plan.rows]


def tokens(plan: Plan) -> int:
    return sum(unpack_ids(plan.counts))


def finish_busily(world: World) -> None:
    """Run to the end; while anything is live, there must always be a plan with rows under way."""
    for _ in range(5000):
        world.turn()
        if world.core.life.live:
            assert any(plan.rows for plan in world.plans["w0"]), "the worker idles although somebody waits"
        if not world.step() and not world.core.life.live:
            return
    raise AssertionError("it does not come to an end")


def leave_nothing(world: World, *rids: bytes) -> None:
    for rid in rids:
        world.cancel(rid)
    world.finish()
    world.assert_empty()
    worker = world.core.workers["w0"]
    worker.cache.flush()
    assert worker.cache.pool.free == worker.cache.pool.total
    assert (world.core.tree.size, world.core.tree.roots) == (0, {})


# --- The same pass ------------------------------------------------------------------------------------------------------


def test_a_sibling_joins_the_same_plan_when_the_budget_allows() -> None:
    world = World(Settings(chunk_tokens=100), profile(page_size=4, pages=100))
    rids = [world.open([*SHARED, 31], max_tokens=1), world.open([*SHARED, 32], max_tokens=1)]
    world.finish()
    assert [len(plan) for plan in opens(world)] == [2]
    assert [(tokens(plan), [slot.committed for slot in plan.opens]) for plan in world.sent if plan.rows] == [
        (64 + 2, [0, 64])
    ]
    assert world.worker.computed == 64 + 2
    for tail, rid in zip((31, 32), rids, strict=True):
        assert world.outputs[rid, 0] == text([*SHARED, tail], 1)
    leave_nothing(world, *rids)


def test_a_sibling_joins_the_next_plan_when_the_budget_is_used_up() -> None:
    world = World(Settings(chunk_tokens=66), profile(page_size=4, pages=100))
    rids = [world.open([*SHARED, 31, 31], max_tokens=1), world.open([*SHARED, 32], max_tokens=1)]
    world.finish()
    assert [len(plan) for plan in opens(world)] == [1, 1]
    assert world.worker.computed == 64 + 3
    leave_nothing(world, *rids)


def test_a_sibling_starts_with_what_is_there_and_shares_the_rest_as_it_comes() -> None:
    """Two long prompts part after three of four chunks: until then one row computes, and the other comes in right behind."""
    world = World(Settings(chunk_tokens=16, depth=1), profile(page_size=4, pages=100))
    first, second = [*SHARED[:48], *[31] * 16], [*SHARED[:48], *[32] * 16]
    rids = [world.open(prompt, max_tokens=1) for prompt in (first, second)]
    finish_busily(world)
    assert [[slot.committed for slot in plan] for plan in opens(world)] == [[0], [], [], [], [48]]
    assert world.worker.computed == 48 + 16 + 16
    leave_nothing(world, *rids)


def test_one_prompt_twice_is_computed_once_but_for_its_last_page() -> None:
    world = World(Settings(chunk_tokens=200), profile(page_size=4, pages=100))
    rids = [world.open(SHARED, max_tokens=3, ignore_eos=True) for _ in range(2)]
    world.finish()
    assert world.worker.computed == 64 + 4 + 2 * 2
    assert [world.outputs[rid, 0] for rid in rids] == [text(SHARED, 3)] * 2
    leave_nothing(world, *rids)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_five_hundred_siblings_compute_what_they_share_once(policy: str, depth: int) -> None:
    settings = Settings(chunk_tokens=256, policy=policy, depth=depth, max_queued=600)
    world = World(settings, profile(page_size=4, pages=2000, slots=64))
    world.open([39] * 50, max_tokens=1)  # somebody else's
    rids = [world.open([*SHARED, *divmod(number, 38)], max_tokens=1) for number in range(500)]
    for _ in range(500):
        world.turn()
        if not world.step():
            break
    assert world.worker.computed == 50 + 64 + 500 * 2
    assert all(world.outputs[rid, 0] for rid in rids)


def test_siblings_of_siblings_share_at_every_level() -> None:
    world = World(Settings(chunk_tokens=32), profile(page_size=4, pages=600, slots=8))
    prompts = [[*SHARED[:32], *[30 + a] * 16, *[20 + b] * 8, c] for a in range(3) for b in range(3) for c in range(3)]
    rids = [world.open(prompt, max_tokens=1) for prompt in prompts]
    finish_busily(world)
    assert world.worker.computed == 32 + 3 * 16 + 9 * 8 + 27
    for prompt, rid in zip(prompts, rids, strict=True):
        assert world.outputs[rid, 0] == text(prompt, 1)
    leave_nothing(world, *rids)


@pytest.mark.parametrize("workers", [2, 3])
def test_no_second_worker_computes_what_one_is_computing(workers: int) -> None:
    """Cold siblings come while others are idle: they wait for the one that computes their prefix, and go there."""
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=200), workers=workers)
    shared = SHARED * 4
    rids = [world.open([*shared, tail], max_tokens=1) for tail in (30, 31)]
    world.turn()
    world.step("w0")
    rids.append(world.open([*shared, 32], max_tokens=1))
    world.finish()
    assert sum(worker.computed for worker in world.workers.values()) == 256 + 3
    assert all(world.outputs[rid, 0] == text([*shared, 30 + number], 1) for number, rid in enumerate(rids))


# --- The leader goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", range(1, 9))
def test_when_the_leader_is_cancelled_the_next_goes_on_from_its_pages_at_once(at: int, depth: int) -> None:
    """Whatever the step: no plan is skipped, and what was computed or is under way is not computed again."""
    world = World(Settings(chunk_tokens=16, depth=depth), profile(page_size=4, pages=200))
    prompts = [[*SHARED, tail, tail] for tail in (30, 31, 32)]
    leader, *others = (world.open(prompt, max_tokens=2, ignore_eos=True) for prompt in prompts)
    for _ in range(at):
        world.turn()
        world.step()
    world.cancel(leader)
    finish_busily(world)
    for prompt, rid in zip(prompts[1:], others, strict=True):
        assert world.outputs[rid, 0] == text(prompt, 2)
    # Needed: what is shared, two tails and two decode rows; beside that the leader's own tail and decode row at most.
    assert 64 + 2 * 2 + 2 <= world.worker.computed <= 64 + 3 * 2 + 3
    leave_nothing(world, *others)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_when_each_leader_in_turn_is_cancelled_nothing_is_computed_twice(depth: int) -> None:
    world = World(Settings(chunk_tokens=8, depth=depth), profile(page_size=4, pages=200, slots=2))
    rids = [world.open([*SHARED, 31 + number], max_tokens=1) for number in range(9)]
    for rid in rids[:-1]:
        world.turn()
        assert world.core.ledger.requests[rid].choices[0].row is not None
        world.cancel(rid)
        world.step()
    finish_busily(world)
    # The last token of its own of each leader whose last chunk was under way already.
    assert world.worker.computed <= 64 + depth
    assert world.outputs[rids[-1], 0] == text([*SHARED, 39], 1)
    leave_nothing(world, rids[-1])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_leader_retracted_at_any_chunk_resumes_and_its_siblings_go_on(at: int, depth: int) -> None:
    world = World(Settings(chunk_tokens=16, depth=depth), profile(page_size=4, pages=200))
    prompts = [[*SHARED, tail, tail] for tail in (30, 31, 32)]
    rids = [world.open(prompt, max_tokens=3, ignore_eos=True) for prompt in prompts]
    world.steps(at)
    row = world.core.ledger.requests[rids[0]].choices[0].row
    if row is not None:
        world.core.life.retract(row)
    finish_busily(world)
    for prompt, rid in zip(prompts, rids, strict=True):
        assert world.outputs[rid, 0] == text(prompt, 3)
    # The retracted one computes its last page and the tokens it had drawn again, and nothing else.
    assert world.worker.computed <= 64 + 3 * 2 + 3 * 2 + 4 + 3
    leave_nothing(world, *rids)


@pytest.mark.parametrize("at", range(1, 8))
def test_retracted_and_then_cancelled_it_leaves_nothing(at: int) -> None:
    for pause in (0, 1, 2):
        world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=60))
        gone, stays = world.open([*SHARED, 31], max_tokens=4), world.open([*SHARED, 32], max_tokens=4, ignore_eos=True)
        world.steps(at)
        row = world.core.ledger.requests[gone].choices[0].row
        if row is not None:
            world.core.life.retract(row)
        world.steps(pause)
        world.cancel(gone)
        finish_busily(world)
        assert world.outputs[stays, 0] == text([*SHARED, 32], 4)
        leave_nothing(world, stays)


@pytest.mark.parametrize("at", range(1, 12))
def test_all_rows_retracted_at_once_resume_to_the_same_texts(at: int) -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=100))
    prompts = [[*SHARED[:40], tail, *SHARED[:tail]] for tail in (30, 31, 32)]
    rids = [world.open(prompt, max_tokens=6, ignore_eos=True) for prompt in prompts]
    world.steps(at)
    for row in list(world.core.workers["w0"].rows.values()):
        world.core.life.retract(row)
    world.turn()
    finish_busily(world)
    for prompt, rid in zip(prompts, rids, strict=True):
        assert world.outputs[rid, 0] == text(prompt, 6)
    leave_nothing(world, *rids)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retracted_choice_waits_at_its_place_and_no_limit_refuses_it(policy: str) -> None:
    """Of eight, two run; retracted, they are the first again, if the policy goes by arrival, although the queue is full."""
    settings = Settings(chunk_tokens=16, policy=policy, max_queued=6)
    world = World(settings, profile(page_size=4, pages=100, slots=2))
    rids = [world.open([1 + number] * 4, max_tokens=4, ignore_eos=True) for number in range(2)]
    world.turn()
    rids += [world.open([3 + number] * 4, max_tokens=4, ignore_eos=True) for number in range(6)]
    refused = world.open([30], max_tokens=1)
    world.turn()
    assert world.replies[refused, 1].error.code == "queue_full"
    rows = list(world.core.workers["w0"].rows.values())
    assert sorted(row.choice.request.rid for row in rows) == rids[:2]
    for row in rows:
        world.core.life.retract(row)
    world.finish()
    assert all(world.outputs[rid, 0] == text([1 + number] * 4, 4) for number, rid in enumerate(rids))
    if policy in ("lpm", "fcfs", "priority"):
        done = [frame.rid for frame in world.frames if frame.end is not None]
        # The slots are not kept empty while results of the retracted are due; then these are the first again.
        assert done[:4] == [rids[2], rids[3], rids[0], rids[1]]


# --- Cancel anywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 0.3])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", range(12))
def test_a_cancel_anywhere_leaves_the_two_others_alone_and_no_node(at: int, depth: int, late: float) -> None:
    """In the queue, at its admission, in its first, middle, last but one and last chunk, in decode, and after its end."""
    for gone in range(3):
        world = World(Settings(chunk_tokens=16, depth=depth), profile(page_size=4, pages=200, slots=2), late=late)
        prompts = [[*SHARED[:40], tail, *SHARED[:tail]] for tail in (29, 30, 31)]
        rids = [world.open(prompt, max_tokens=4, ignore_eos=True) for prompt in prompts]
        world.steps(at)
        world.cancel(rids[gone])
        world.cancel(rids[gone])
        world.cancel(b"nobody")
        finish_busily(world)
        for number in {0, 1, 2} - {gone}:
            assert world.outputs[rids[number], 0] == text(prompts[number], 4)
        leave_nothing(world, *rids)


@pytest.mark.parametrize("at", range(8))
def test_a_cancel_and_an_open_of_the_same_prompt_before_one_decision(at: int) -> None:
    for same_rid in (False, True):
        world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=60))
        first = world.open([*SHARED, 31], max_tokens=4, ignore_eos=True)
        world.steps(at)
        world.cancel(first)
        again = world.open(
            [*SHARED, 31], rid=first if same_rid else b"", attempt=2 if same_rid else 1, max_tokens=4, ignore_eos=True
        )
        if same_rid:
            world.outputs.pop((first, 0), None)  # the gateway holds nothing of it
            world.ends.pop((first, 0), None)
        finish_busily(world)
        assert world.outputs[again, 0] == text([*SHARED, 31], 4)
        world.cancel(again, attempt=2 if same_rid else 1)
        leave_nothing(world)


def test_a_waiting_request_leaves_no_node_when_it_goes() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=40, slots=1))
    running = world.open([9] * 20, max_tokens=20, ignore_eos=True)
    world.steps(4)
    before = world.core.tree.size
    waiting = [world.open([*SHARED[:length], 30], max_tokens=1) for length in (0, 3, 4, 30, 64)]
    world.turn()
    assert world.core.tree.size > before
    for rid in waiting:
        world.cancel(rid)
    assert world.core.tree.size == before
    world.finish()
    leave_nothing(world, running)


# --- What is cached -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("again", [-5, -1, 0, 1, 6])
def test_a_prompt_finds_what_is_cached_but_for_its_last_token(length: int, again: int) -> None:
    """Full, partial and full-but-one hits, at page and chunk boundaries and beside them."""
    if length + again < 1:
        return
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=60))
    prompt = [1 + at % 30 for at in range(60)]
    first = world.open(prompt[:length], max_tokens=1)
    world.finish()
    second = world.open(prompt[: length + again], max_tokens=1)
    world.finish()
    cached = next(frame.cached_tokens for frame in world.frames if frame.rid == second)
    assert cached == min(length // 4 * 4, (length + again - 1) // 4 * 4)
    assert world.worker.computed == length + length + again - cached
    leave_nothing(world, first, second)


def test_what_was_evicted_is_computed_again_and_gives_the_same_text() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=30))
    first = world.open(SHARED, max_tokens=3, ignore_eos=True)
    world.finish()
    world.core.workers["w0"].cache.evict(10)
    again = world.open(SHARED, max_tokens=3, ignore_eos=True)
    world.finish()
    assert world.outputs[first, 0] == world.outputs[again, 0]
    assert next(frame.cached_tokens for frame in world.frames if frame.rid == again) == 24
    leave_nothing(world, first, again)


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize("at", range(1, 7))
def test_an_eviction_between_chunks_takes_nothing_that_a_row_needs(at: int, eviction: str) -> None:
    world = World(Settings(chunk_tokens=16, eviction=eviction), profile(page_size=4, pages=60))
    old = world.open([9] * 30, max_tokens=1)
    world.finish()
    rids = [world.open([*SHARED, tail], max_tokens=4, ignore_eos=True) for tail in (31, 32)]
    world.steps(at)
    world.turn()
    world.core.workers["w0"].cache.flush()
    world.finish()
    for tail, rid in zip((31, 32), rids, strict=True):
        assert world.outputs[rid, 0] == text([*SHARED, tail], 4)
    again = world.open([9] * 30, max_tokens=1)
    world.finish()
    assert world.outputs[again, 0] == world.outputs[old, 0]
    leave_nothing(world, old, again, *rids)


def test_pages_that_come_into_the_cache_while_a_row_computes_them_too_are_kept_once() -> None:
    """A request that must compute its whole prompt (for its logprobs) runs beside one that computes the same pages for the cache."""
    for first_logprobs in (True, False):
        world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=60))
        fields: list[dict[str, Any]] = [{"prompt_logprobs": 0}, {}] if first_logprobs else [{}, {"prompt_logprobs": 0}]
        rids = [world.open([*SHARED, 31], max_tokens=6, ignore_eos=True, **field) for field in fields]
        world.finish()
        assert [world.outputs[rid, 0] for rid in rids] == [text([*SHARED, 31], 6)] * 2
        cache = world.core.workers["w0"].cache
        assert cache.shelf.total_pages == (65 + 5) // 4
        assert cache.pool.free == 60 - cache.shelf.total_pages
        leave_nothing(world, *rids)


def test_two_prompts_under_way_lock_what_they_share_until_both_are_gone() -> None:
    world = World(Settings(chunk_tokens=16, depth=1), profile(page_size=4, pages=100))
    rids = [world.open([*SHARED[:32], *[tail] * 40], max_tokens=2, ignore_eos=True) for tail in (31, 32)]
    world.steps(5)
    shelf = world.core.workers["w0"].cache.shelf
    assert shelf.locks == 2
    world.cancel(rids[0])
    world.turn()
    assert shelf.locked_pages >= 8
    world.core.workers["w0"].cache.flush()
    world.finish()
    assert world.outputs[rids[1], 0] == text([*SHARED[:32], *[32] * 40], 2)
    leave_nothing(world, *rids)


def test_a_prompt_in_many_chunks_counts_no_hit_and_a_request_that_finds_it_one() -> None:
    world = World(Settings(chunk_tokens=8), profile(page_size=4, pages=60))
    first = world.open([*SHARED, 31], max_tokens=1)
    world.finish()

    def hits() -> set[int]:
        return {copy.hits for node in world.core.tree.nodes() for copy in node.copies.values()}

    assert hits() == {0}
    second = world.open([*SHARED, 32], max_tokens=1)
    world.finish()
    assert hits() == {1}
    leave_nothing(world, first, second)


def test_a_newcomer_does_not_count_its_own_prefix_as_room() -> None:
    """14 of 20 pages are its cached prefix; locking them leaves too few for the rest of its prompt beside the row that runs."""
    world = World(Settings(chunk_tokens=64, reserve=0.0), profile(page_size=4, pages=20))
    first = world.open(SHARED[:57], max_tokens=1)
    world.finish()
    runs = world.open([31] * 8, max_tokens=12, ignore_eos=True)
    world.steps(2)
    comes = world.open([*SHARED[:56], *[32] * 16], max_tokens=1)
    world.turn()
    assert world.core.ledger.requests[comes].choices[0].row is None
    finish_busily(world)
    assert world.outputs[runs, 0] == text([31] * 8, 12)
    assert world.outputs[comes, 0] == text([*SHARED[:56], *[32] * 16], 1)
    assert world.core.counters.retractions == 0
    leave_nothing(world, first, runs, comes)


# --- What can never fit -------------------------------------------------------------------------------------------------


def test_what_fits_the_largest_worker_is_taken_and_what_fits_none_is_refused_with_both_numbers() -> None:
    world = World(shape=profile(page_size=4, pages=10))
    world.join("w1", type(world.worker)(profile(page_size=4, pages=20)))
    fits, never = world.open([1] * 79, max_tokens=1), world.open([1] * 80, max_tokens=1)
    world.turn()
    assert world.replies[fits, 1].error is None
    error = world.replies[never, 1].error
    assert (error.code, error.param) == ("prompt_too_long", "ids")
    assert "80 tokens" in error.message
    assert "at most 80" in error.message
    world.finish()
    assert world.ends[fits, 0].reason == "length"


def test_pages_of_rows_that_failed_are_read_by_nobody_new() -> None:
    world = World(Settings(chunk_tokens=64, depth=1), profile(pages=64, page_size=4))
    healthy = world.open([3] * 9, max_tokens=1)
    world.finish()
    broken = [world.open([3] * 8 + [9] * 12, max_tokens=5) for _ in range(2)]
    world.turn()
    plan = world.plans["w0"].popleft()
    result = world.worker.run(plan)
    rows = range(len(result.yields))
    assert len(rows) == 2, "both read the same pages in one plan"
    failures = tuple(RowFailure(row, "nan", "not a number") for row in rows)
    world.core.result("w0", Result(result.step, bytes(len(rows)), b"", failures=failures))
    world.turn()
    assert all(world.ends[rid, 0].reason == "error" for rid in broken)
    assert world.core.tree.size == 0
    for rid in (healthy, *broken):
        world.cancel(rid)
    world.finish()
    world.assert_empty()
