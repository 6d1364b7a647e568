"""The core step by step with one fake worker."""

from __future__ import annotations

import math

import pytest

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import End, SamplingParams
from phloem_scheduler.settings import Settings

from .fake_worker import EOS, expected, profile
from .world import World


def params(max_tokens: int = 8, temperature: float = 0.0, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, **more)  # type: ignore[arg-type]


def counts(world: World) -> list[list[int]]:
    """Tokens of each row, plan by plan."""
    return [list(unpack_ids(plan.counts)) for plan in world.sent if plan.rows]


def test_a_request_yields_what_the_model_says_and_leaves_nothing_behind() -> None:
    world = World()
    rid = world.open([5, 6, 7], max_tokens=12)
    world.finish()
    assert (world.outputs[rid, 0], world.ends[rid, 0]) == expected([5, 6, 7], params(12))
    assert world.replies[rid, 1].error is None
    world.cancel(rid)
    world.finish()
    world.assert_empty()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_plans_run_ahead_to_the_depth_and_no_further(depth: int) -> None:
    world = World(Settings(chunk_tokens=64, depth=depth))
    world.open([5, 6, 7], max_tokens=12, ignore_eos=True)
    world.turn()
    assert len(world.plans["w0"]) == depth
    world.turn()
    assert len(world.plans["w0"]) == depth


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_end_by_length_wastes_nothing_and_one_by_eos_at_most_the_steps_in_flight(depth: int) -> None:
    for prompt in ([5, 6, 7], [1], [9, 9, 9, 9, 9], [2, 3]):
        world = World(Settings(chunk_tokens=64, depth=depth))
        rid = world.open(prompt, max_tokens=200)
        world.finish()
        waste = world.core.counters.wasted_draws
        assert waste <= (depth - 1 if world.ends[rid, 0].reason == "stop" else 0)
        world = World(Settings(chunk_tokens=64, depth=depth))
        world.open(prompt, max_tokens=30, ignore_eos=True)
        world.finish()
        assert world.core.counters.wasted_draws == 0
        assert world.worker.computed == len(prompt) + 29


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 64, 65])
def test_a_prompt_is_computed_in_page_aligned_chunks(length: int) -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=64))
    prompt = [1 + at % 30 for at in range(length)]
    rid = world.open(prompt, max_tokens=3, ignore_eos=True)
    world.finish()
    chunks = [row[0] for row in counts(world) if row[0]]
    assert sum(chunks) == length
    assert all(chunk == 16 for chunk in chunks[:-1])
    assert world.outputs[rid, 0] == expected(prompt, params(3, ignore_eos=True))[0]


def test_a_chunk_runs_beside_decode_rows() -> None:
    world = World(Settings(chunk_tokens=16))
    world.open([1, 2, 3], max_tokens=20, ignore_eos=True)
    world.steps(3)
    world.open([7] * 40, max_tokens=2, ignore_eos=True)
    world.finish()
    assert [0, 16] in counts(world)


def test_the_same_prompt_again_is_cached_but_for_its_last_page() -> None:
    world = World(shape=profile(page_size=4))
    prompt = list(range(1, 17))
    first = world.open(prompt)
    world.finish()
    again = world.open(prompt)
    world.finish()
    cached = {frame.rid: frame.cached_tokens for frame in world.frames}
    assert (cached[first], cached[again]) == (0, 12)
    assert world.outputs[first, 0] == world.outputs[again, 0]


def test_another_salt_shares_nothing() -> None:
    world = World(shape=profile(page_size=4))
    prompt = list(range(1, 17))
    world.open(prompt, salt="a")
    world.finish()
    other = world.open(prompt, salt="b")
    world.finish()
    assert {frame.cached_tokens for frame in world.frames if frame.rid == other} == {0}


def test_a_conversation_finds_its_own_output_in_the_cache() -> None:
    world = World(shape=profile(page_size=4))
    prompt = list(range(1, 10))
    rid = world.open(prompt, max_tokens=20, ignore_eos=True)
    world.finish()
    longer = [*prompt, *world.outputs[rid, 0], 3, 3]
    again = world.open(longer)
    world.finish()
    # The last drawn token has no KV: 9 + 19 tokens are whole pages.
    assert next(frame.cached_tokens for frame in world.frames if frame.rid == again) == 28


def test_a_shared_prefix_is_computed_once_while_its_leader_is_still_at_it() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=200, slots=8))
    shared = [1 + at % 30 for at in range(64)]
    rids = [world.open([*shared, tail], max_tokens=1) for tail in range(30, 36)]
    world.finish()
    assert world.worker.computed == 64 + 6
    for tail, rid in zip(range(30, 36), rids, strict=True):
        assert world.outputs[rid, 0] == expected([*shared, tail], params(1))[0]


def test_choices_of_one_request_share_their_prompt_and_have_their_own_output_and_end() -> None:
    world = World(Settings(chunk_tokens=64), profile(page_size=4, pages=200))
    prompt = [1 + at % 30 for at in range(33)]
    rid = world.open(prompt, n=5, temperature=1.0, seed=7, max_tokens=25)
    world.finish()
    wanted = params(25, temperature=1.0)
    for child in range(5):
        assert (world.outputs[rid, child], world.ends[rid, child]) == expected(prompt, wanted, seed=7, child=child)
    assert world.core.counters.prompt_tokens - world.core.counters.cached_tokens == 33 + 4
    world.cancel(rid)
    world.finish()
    world.assert_empty()


def test_followers_go_on_when_their_leader_is_cancelled() -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4, pages=200))
    shared = [1 + at % 30 for at in range(64)]
    leader, follower, third = (world.open([*shared, tail], max_tokens=2) for tail in (30, 31, 32))
    world.steps(2)
    world.cancel(leader)
    world.finish()
    for tail, rid in ((31, follower), (32, third)):
        assert world.outputs[rid, 0] == expected([*shared, tail], params(2))[0]
    assert world.worker.computed <= 64 + 2 + 4


def test_max_tokens_zero_computes_the_prompt_and_ends_by_length() -> None:
    world = World(shape=profile(page_size=4))
    rid = world.open([1] * 12, max_tokens=0)
    world.finish()
    assert (world.outputs[rid, 0], world.ends[rid, 0]) == ([], End("length"))
    assert world.core.workers["w0"].cache.shelf.total_pages == 3
    world.cancel(rid)
    world.finish()
    world.assert_empty()


def test_eos_and_stop_ids_end_a_choice_and_ignore_eos_only_spares_eos() -> None:
    for prompt in ([5], [6], [7], [8], [9, 1]):
        free = expected(prompt, params(60, ignore_eos=True))[0]
        stop = free[9]
        world = World()
        rids = [
            world.open(prompt, max_tokens=60),
            world.open(prompt, max_tokens=60, ignore_eos=True),
            world.open(prompt, max_tokens=60, ignore_eos=True, stop_token_ids=(stop,)),
        ]
        world.finish()
        cut = free.index(EOS) + 1 if EOS in free else 60
        assert world.outputs[rids[0], 0] == free[:cut]
        assert world.outputs[rids[1], 0] == free
        assert world.outputs[rids[2], 0] == free[: free.index(stop) + 1]
        assert world.ends[rids[2], 0] == End("stop", matched=stop)


def test_a_drawn_id_outside_the_vocabulary_is_an_error_of_that_choice_alone() -> None:
    world = World()
    bad, good = world.open([5, 6, 7], ignore_eos=True), world.open([8, 9], ignore_eos=True)
    world.turn()
    result = world.worker.run(world.plans["w0"].popleft())
    ids = unpack_ids(result.ids)
    ids[0] = 40
    world.core.result("w0", type(result)(result.step, result.yields, pack_ids(ids)))
    world.finish()
    assert world.ends[bad, 0].reason == "error"
    assert world.ends[good, 0].reason == "length"


def test_late_draws_run_again_and_change_nothing() -> None:
    prompts = [[at, at + 1, 3] for at in range(1, 7)]
    world = World(late=0.4)
    rids = [world.open(prompt, max_tokens=20) for prompt in prompts]
    world.finish()
    for prompt, rid in zip(prompts, rids, strict=True):
        assert (world.outputs[rid, 0], world.ends[rid, 0]) == expected(prompt, params(20))
    assert world.core.counters.late_masks > 5


def test_a_stop_string_beats_an_end_of_the_scheduler_at_or_after_it() -> None:
    world = World()
    rid = world.open([5, 6, 7], max_tokens=20, ignore_eos=True)
    world.steps(6)
    world.stop_at(rid, 3)
    world.finish()
    assert (rid, 0) not in world.ends  # the detokeniser tells the gateway itself
    choice = world.core.ledger.requests[rid].choices[0]
    assert (len(choice.output), choice.end) == (3, End("stop"))

    ended = world.open([5, 6, 7], max_tokens=6, ignore_eos=True)
    world.finish()
    world.stop_at(ended, 4)
    choice = world.core.ledger.requests[ended].choices[0]
    assert (len(choice.output), choice.end) == (4, End("stop"))
    for done in (rid, ended):
        world.cancel(done)
    world.finish()
    world.assert_empty()


def test_a_stop_of_a_former_attempt_is_dropped() -> None:
    world = World()
    rid = world.open([5, 6, 7], max_tokens=20, ignore_eos=True)
    world.steps(3)
    world.open([5, 6, 7], rid=rid, attempt=2, max_tokens=20, ignore_eos=True, have=(world.hold(rid),))
    world.stop_at(rid, 1, attempt=1)
    world.finish()
    assert len(world.outputs[rid, 0]) == 20


@pytest.mark.parametrize("late", [0.0, 0.3])
@pytest.mark.parametrize("at", range(14))
def test_a_cancel_at_any_step_frees_everything_and_leaves_others_alone(at: int, late: float) -> None:
    world = World(Settings(chunk_tokens=16), profile(page_size=4), late=late)
    shared = [1 + at % 30 for at in range(40)]
    gone = world.open(shared, n=2, max_tokens=6, ignore_eos=True)
    stays = world.open([*shared, 7], max_tokens=6, ignore_eos=True)
    world.steps(at)
    world.cancel(gone)
    world.cancel(gone)
    world.finish()
    assert world.outputs[stays, 0] == expected([*shared, 7], params(6, ignore_eos=True))[0]
    world.cancel(stays)
    world.finish()
    world.assert_empty()


def test_a_cancel_before_its_open_makes_that_open_stale() -> None:
    world = World()
    world.cancel(b"late", attempt=2)
    world.open([1, 2], rid=b"late", attempt=2)
    world.turn()
    reply = world.replies[b"late", 2]
    assert reply.error is not None
    assert reply.error.code == "stale"
    world.now += 61
    world.turn()
    world.open([1, 2], rid=b"late", attempt=2)
    world.turn()
    assert world.replies[b"late", 2].error is None


def test_cancelling_one_rid_does_not_touch_another_that_begins_alike() -> None:
    world = World()
    one, ten = world.open([1, 2], rid=b"1"), world.open([1, 3], rid=b"10")
    world.cancel(one)
    world.finish()
    assert (ten, 0) in world.ends
    assert (one, 0) not in world.ends


def test_a_deadline_ends_a_choice_wherever_it_is() -> None:
    world = World(Settings(chunk_tokens=16), profile(slots=1))
    running = world.open([1, 2, 3], max_tokens=50, ignore_eos=True, deadline_ms=1000)
    waiting = world.open([1, 2, 4], max_tokens=50, ignore_eos=True, deadline_ms=1000)
    world.steps(5)
    world.now += 1.5
    world.finish()
    for rid in (running, waiting):
        assert (world.ends[rid, 0].reason, world.ends[rid, 0].code) == ("abort", "deadline")
    assert (
        world.outputs[running, 0]
        == expected([1, 2, 3], params(50, ignore_eos=True))[0][: len(world.outputs[running, 0])]
    )
    assert world.core.idle


def test_prompt_logprobs_come_once_in_order_and_limit_the_cached_prefix() -> None:
    world = World(Settings(chunk_tokens=8), profile(page_size=4))
    prompt = [1 + at % 30 for at in range(30)]
    world.open(prompt)
    world.finish()
    whole = world.open(prompt, prompt_logprobs=0, logprobs=0, max_tokens=3, ignore_eos=True)
    tail = world.open(prompt, prompt_logprobs=0, logprob_start=18, max_tokens=3, ignore_eos=True)
    world.finish()
    first = {frame.rid: frame for frame in world.frames if frame.offset == 0}
    assert [entry.id for entry in first[whole].prompt_logprobs] == prompt
    assert math.isnan(first[whole].prompt_logprobs[0].logprob)
    assert [entry.logprob for entry in first[whole].prompt_logprobs[1:]] == [-(at + 1.0) for at in range(1, 30)]
    assert [entry.logprob for entry in first[tail].prompt_logprobs] == [-(at + 1.0) for at in range(18, 30)]
    assert (first[whole].cached_tokens, first[tail].cached_tokens) == (0, 16)
    drawn = [entry for frame in world.frames if frame.rid == whole for entry in frame.logprobs]
    assert [(entry.id, entry.logprob) for entry in drawn] == [
        (token, -(31.0 + at)) for at, token in enumerate(world.outputs[whole, 0])
    ]
    for rid in (whole, tail):
        world.cancel(rid)


def test_prompt_logprobs_survive_a_retraction_without_a_gap_or_a_repetition() -> None:
    for at in range(1, 7):
        world = World(Settings(chunk_tokens=8, depth=1), profile(page_size=4))
        prompt = [1 + token % 30 for token in range(30)]
        rid = world.open(prompt, prompt_logprobs=0, max_tokens=4, ignore_eos=True)
        world.steps(at)
        row = world.core.ledger.requests[rid].choices[0].row
        if row is not None:
            world.core.life.retract(row)
        world.finish()
        first = next(frame for frame in world.frames if frame.offset == 0)
        assert [entry.id for entry in first.prompt_logprobs] == prompt
        assert [entry.logprob for entry in first.prompt_logprobs[1:]] == [-(token + 1.0) for token in range(1, 30)]


def test_requests_start_in_order_of_priority_then_arrival() -> None:
    world = World(shape=profile(slots=1))
    late, early = world.open([1, 2], max_tokens=1), world.open([3, 4], max_tokens=1, age_ms=5000)
    urgent = world.open([5, 6], max_tokens=1, priority=3)
    world.finish()
    assert [frame.rid for frame in world.frames] == [urgent, early, late]
