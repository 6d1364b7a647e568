"""Too few pages, slots or queue places: eviction, retraction, refusal."""

from __future__ import annotations

import pytest

from phloem_proto.messages import SamplingParams
from phloem_scheduler.chunks import Budget
from phloem_scheduler.pace import FIRST_TOKENS, Pace
from phloem_scheduler.retraction import victim
from phloem_scheduler.settings import Settings

from .fake_worker import expected, profile
from .world import World

FREE = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


def outputs_under_pressure(pages: int, page_size: int = 4, requests: int = 6, depth: int = 2) -> World:
    world = World(Settings(chunk_tokens=16, depth=depth), profile(page_size=page_size, pages=pages))
    prompts = [[number + 1, *(1 + at % 9 for at in range(3 + number * 2))] for number in range(requests)]
    rids = [world.open(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    world.finish()
    for prompt, rid in zip(prompts, rids, strict=True):
        assert world.outputs[rid, 0] == expected(prompt, FREE)[0]
        world.cancel(rid)
    world.finish()
    world.assert_empty()
    return world


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pages", [10, 12, 16, 22])
def test_retracted_requests_resume_with_the_same_text(pages: int, depth: int) -> None:
    outputs_under_pressure(pages, depth=depth)


@pytest.mark.parametrize("page_size", [1, 16])
def test_without_a_reserve_the_pool_is_overcommitted_and_rows_retract(page_size: int) -> None:
    shape = profile(page_size=page_size, pages=96 // page_size, slots=16)
    world = World(Settings(chunk_tokens=16, reserve=0.0), shape)
    prompts = [[1 + number, 2, 3] for number in range(16)]
    rids = [world.open(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    world.finish()
    assert world.core.counters.retractions > 0
    for prompt, rid in zip(prompts, rids, strict=True):
        assert world.outputs[rid, 0] == expected(prompt, FREE)[0]
        world.cancel(rid)
    world.finish()
    world.assert_empty()


def test_the_reserve_sinks_while_all_goes_well_and_rises_after_a_retraction() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=100))
    world.open([1, 2, 3], max_tokens=100, ignore_eos=True)
    world.open([1, 2, 4], max_tokens=100, ignore_eos=True)
    world.steps(60)
    reserve = world.core.planner.reserve
    assert reserve.share == pytest.approx(0.7 - 59 * 0.7 * 0.86 / 600, abs=0.003)
    rows = list(world.core.workers["w0"].rows.values())
    reserve.retracted(rows)
    assert reserve.share == pytest.approx(sum(len(row.choice.output) + 20 for row in rows) / 201)
    world.finish()
    assert reserve.share == 0.7


def test_what_is_in_flight_when_a_row_is_retracted_still_counts() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=24))
    one = world.open([1, 2, 3], max_tokens=12, ignore_eos=True)
    two = world.open([1, 2, 4], max_tokens=12, ignore_eos=True)
    world.steps(4)
    world.turn()
    row = world.core.ledger.requests[two].choices[0].row
    assert row is not None
    assert row.in_flight == 2
    before = len(world.outputs[two, 0])
    world.core.life.retract(row)
    world.finish()
    assert world.outputs[two, 0] == expected([1, 2, 4], FREE)[0][:12]
    assert world.outputs[one, 0] == expected([1, 2, 3], FREE)[0][:12]
    replayed = world.core.counters.prompt_tokens - 6
    assert replayed == 3 + before + 2


def test_a_retracted_request_can_be_cancelled_while_its_results_are_due() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=24))
    rid = world.open([1, 2, 3], max_tokens=12, ignore_eos=True)
    world.steps(4)
    world.turn()
    row = world.core.ledger.requests[rid].choices[0].row
    assert row is not None
    world.core.life.retract(row)
    world.cancel(rid)
    world.finish()
    world.assert_empty()


def test_a_retracted_request_keeps_its_place_and_passes_a_full_queue() -> None:
    world = World(Settings(chunk_tokens=16, max_queued=2), profile(page_size=4, pages=24, slots=1))
    first = world.open([1, 2, 3], max_tokens=9, ignore_eos=True)
    world.steps(3)
    others = [world.open([4 + number], max_tokens=1) for number in range(2)]
    world.turn()
    refused = world.open([9], max_tokens=1)
    world.turn()
    reply = world.replies[refused, 1]
    assert reply.error is not None
    assert (reply.error.code, reply.error.retry_after_ms) == ("queue_full", 1000)
    row = world.core.ledger.requests[first].choices[0].row
    assert row is not None
    world.core.life.retract(row)
    world.finish()
    done = [frame.rid for frame in world.frames if frame.end is not None]
    # The one slot is not kept empty while results of the retracted row are due; then it is the first again.
    assert done == [others[0], first, others[1]]


def test_the_victim_has_the_shortest_output_then_the_longest_prompt() -> None:
    world = World(shape=profile(page_size=4, pages=200))
    for prompt, tokens in (([1] * 5, 30), ([2] * 9, 30), ([3] * 7, 30)):
        world.open(prompt, max_tokens=tokens, ignore_eos=True)
    world.steps(5)
    rows = list(world.core.workers["w0"].rows.values())
    chosen = victim(rows)
    assert chosen is rows[1]
    rows[2].choice.output.pop()
    assert victim(rows) is rows[2]
    assert victim(rows[:1]) is None


def test_two_long_prompts_that_do_not_fit_together_both_finish() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=26))
    world.core.planner.reserve.share = 0.0
    prompts = [[1 + at % 7 for at in range(60)], [2 + at % 7 for at in range(60)]]
    rids = [world.open(prompt, max_tokens=30, ignore_eos=True) for prompt in prompts]
    world.finish()
    for prompt, rid in zip(prompts, rids, strict=True):
        assert (
            world.outputs[rid, 0]
            == expected(prompt, SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))[0]
        )


def test_what_can_never_fit_is_refused_at_once_with_both_numbers() -> None:
    world = World(shape=profile(page_size=4, pages=10, context_length=1000))
    rid = world.open([1] * 40, max_tokens=1)
    world.turn()
    reply = world.replies[rid, 1]
    assert reply.error is not None
    assert reply.error.code == "prompt_too_long"
    assert "40 tokens" in reply.error.message
    assert "at most 40" in reply.error.message
    fits = world.open([1] * 39, max_tokens=50, ignore_eos=True)
    only_prompt = world.open([2] * 40, max_tokens=0)
    world.finish()
    assert (len(world.outputs[fits, 0]), world.ends[fits, 0].reason) == (1, "length")
    assert world.ends[only_prompt, 0].reason == "length"


def test_the_context_length_ends_a_choice() -> None:
    world = World(shape=profile(context_length=20))
    rid = world.open([1] * 15, max_tokens=100, ignore_eos=True)
    world.finish()
    assert (len(world.outputs[rid, 0]), world.ends[rid, 0].reason) == (5, "length")


def test_a_lone_request_whose_prompt_is_cached_but_may_not_be_read_fits() -> None:
    """Prompt logprobs forbid the cached pages; the copies must then give way to the row's own pages."""
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=12))
    prompt = [1 + at % 30 for at in range(44)]
    world.open(prompt, max_tokens=1)
    world.finish()
    rid = world.open(prompt, max_tokens=4, prompt_logprobs=0, ignore_eos=True)
    world.finish()
    assert len(world.outputs[rid, 0]) == 4


def test_eviction_takes_old_prefixes_and_keeps_what_runs() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=30))
    for number in range(12):
        rid = world.open([number + 1] * 30, max_tokens=6, ignore_eos=True)
        world.finish()
        assert world.outputs[rid, 0] == expected([number + 1] * 30, FREE)[0][:6]
        world.cancel(rid)
    world.finish()
    world.assert_empty()


def test_an_eviction_during_a_chunk_takes_nothing_from_it() -> None:
    world = World(Settings(chunk_tokens=8), profile(page_size=4, pages=20))
    old = world.open([9] * 30, max_tokens=1)
    world.finish()
    long = world.open([1 + at % 30 for at in range(60)], max_tokens=3, ignore_eos=True)
    world.finish()
    again = world.open([9] * 30, max_tokens=1)
    world.finish()
    assert world.outputs[old, 0] == world.outputs[again, 0]
    assert world.outputs[long, 0] == expected([1 + at % 30 for at in range(60)], FREE)[0][:3]


def test_with_the_cache_disabled_nothing_is_reused_and_nothing_leaks() -> None:
    world = World(Settings(chunk_tokens=16, reuse=False), profile(page_size=4, pages=30))
    prompt = [1 + at % 30 for at in range(20)]
    rids = [world.open(prompt, max_tokens=6, ignore_eos=True) for _ in range(3)]
    world.finish()
    for rid in rids:
        assert world.outputs[rid, 0] == expected(prompt, FREE)[0][:6]
        world.cancel(rid)
    assert {frame.cached_tokens for frame in world.frames} == {0}
    world.finish()
    world.assert_empty()
    assert world.core.workers["w0"].cache.pool.free == 30


def test_prompts_get_up_to_twice_the_time_while_more_wait_than_decode() -> None:
    (worker,) = World(shape=profile(page_size=4, pages=400, max_step_tokens=1000)).core.workers.values()
    for tokens in (20, 400, 30, 500):
        worker.pace.measured(tokens, 0.25 * tokens)
    budget = Budget(chunk_ms=50, chunk_tokens=None)
    times = [[0.25 * (budget.tokens(worker, rows, waiting) + rows) for waiting in (0, 1, 4, 8, 100)] for rows in (0, 4)]
    assert times == [pytest.approx([50, 56, 75, 100, 100], abs=0.5)] * 2  # one newcomer hardly slows the others
    many = [0.25 * (budget.tokens(worker, 40, waiting) + 40) for waiting in (0, 8, 40, 100)]
    assert many == pytest.approx([50, 60, 100, 100], abs=0.5)
    assert Budget(chunk_ms=50, chunk_tokens=64).tokens(worker, 0, 100) == 64


def test_the_pace_finds_base_and_slope_and_bounds_the_chunk() -> None:
    pace = Pace(1000)
    assert pace.tokens_within(50, 0) == FIRST_TOKENS
    for tokens in (10, 200, 50, 400, 300, 20):
        pace.measured(tokens, 5 + tokens * 0.25)
    assert pace.line() == pytest.approx((5.0, 0.25))
    assert pace.tokens_within(55, 20) == 180
    pace.measured(0, 100)
    pace.measured(10, 0)
    assert pace.line() == pytest.approx((5.0, 0.25))


def test_prompts_advance_although_decoding_alone_takes_longer_than_a_chunk_may() -> None:
    pace = Pace(1000)
    for tokens in (10, 200, 50, 400, 300, 20):
        pace.measured(tokens, 100 + tokens * 0.5)
    assert pace.tokens_within(50, 16) == (100 + 8) // 2 * 2


def test_a_budget_does_not_keep_itself_small() -> None:
    """A step costs 40 ms and 0.1 ms a token: 100 tokens fit into 50 ms. Steps of one size must not hide that for ever."""
    pace, tokens = Pace(2000), 16
    for _ in range(300):
        pace.measured(tokens, 40 + 0.1 * tokens)
        tokens = pace.tokens_within(50, 0)
    assert tokens >= 100
    assert pace.line()[1] == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("slow_at", [0, 1, 2, 30])
@pytest.mark.parametrize("excess", [3.0, 10.0, 40.0])
def test_one_slow_step_does_not_keep_the_next_budgets_small(slow_at: int, excess: float) -> None:
    """As the first steps of a worker are, whose memory is touched for the first time. A step costs 8 ms and 0.6 ms a token: 70 fit into 50."""
    pace, tokens, budgets = Pace(2000), 62, []
    for at in range(60):
        pace.measured(tokens, (8 + 0.6 * tokens) * (excess if at == slow_at else 1))
        tokens = max(16, pace.tokens_within(50, 0))
        budgets.append(tokens)
    assert min(budgets[slow_at + 6 :]) >= 35


def test_a_worker_that_becomes_slower_is_believed() -> None:
    pace, tokens = Pace(2000), 62
    for cost in (0.6, 3.0):
        for _ in range(100):
            pace.measured(tokens, 8 + cost * tokens)
            tokens = max(4, pace.tokens_within(50, 0))
    assert 8 + 3.0 * tokens <= 75


def test_a_chunk_budget_in_milliseconds_follows_the_worker() -> None:
    world = World(Settings(chunk_ms=10), profile(page_size=4, pages=400, max_step_tokens=1000), forward_ms=0.25)
    world.open([1 + at % 30 for at in range(1000)], max_tokens=1)
    world.finish()
    chunks = [len(plan.rows) and int.from_bytes(plan.counts[:4], "little") for plan in world.sent]
    assert chunks[0] == FIRST_TOKENS
    assert 36 <= chunks[6] <= 40
