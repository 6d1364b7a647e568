"""Routes and neighbours: opening again, detokenisers, gateways, grammars, workers, flushes."""

from __future__ import annotations

from typing import Any

import pytest

from phloem_proto.codec import pack_ids
from phloem_proto.messages import (
    End,
    ErrorInfo,
    FlushReply,
    Grammar,
    GrammarSpec,
    Held,
    Live,
    LiveRequest,
    OpenReply,
    Output,
    Result,
    RowFailure,
    SamplingParams,
    TokenFrame,
    Verdict,
)
from phloem_scheduler.outbox import parts
from phloem_scheduler.settings import Settings

from .fake_worker import EOS, FakeWorker, expected, profile
from .world import World

FREE = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9]
WANTED = expected(PROMPT, FREE)[0]


def error_of(world: World, rid: bytes, attempt: int = 1) -> ErrorInfo | None:
    reply = world.replies[rid, attempt]
    assert isinstance(reply, OpenReply)
    return reply.error


def release(world: World, *rids: bytes) -> None:
    for rid in rids:
        world.cancel(rid, attempt=99)
    world.finish()
    world.assert_empty()


# --- open ---------------------------------------------------------------------------------------------------------------------


def test_the_same_attempt_gets_the_same_reply_and_a_lower_one_is_stale() -> None:
    world = World()
    rid = world.open(PROMPT, attempt=2, max_tokens=20, ignore_eos=True)
    world.steps(3)
    world.open(PROMPT, rid=rid, attempt=2, max_tokens=20, ignore_eos=True)
    world.open(PROMPT, rid=rid, attempt=1, max_tokens=20, ignore_eos=True)
    world.finish()
    assert error_of(world, rid, 2) is None
    stale = error_of(world, rid, 1)
    assert stale is not None
    assert stale.code == "stale"
    assert world.outputs[rid, 0] == WANTED[:20]
    assert world.core.counters.requests == 1
    release(world, rid)


def test_a_higher_attempt_is_told_from_what_its_gateway_holds_and_the_work_goes_on() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=20, ignore_eos=True)
    world.steps(8)
    computed = world.worker.computed
    del world.outputs[rid, 0][2:]  # the gateway lost the rest with its detokeniser
    world.open(PROMPT, rid=rid, attempt=2, gateway="g2", max_tokens=20, ignore_eos=True, have=(world.hold(rid),))
    world.turn()
    assert world.frames[-1].attempt == 2
    assert world.frames[-1].offset == 2
    world.finish()
    assert world.outputs[rid, 0] == WANTED[:20]
    assert world.worker.computed == computed + 20 - (computed - 4)
    assert list(world.core.ledger.gateways) == ["g2"]
    release(world, rid)


def test_a_finished_request_is_told_again_with_its_end() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=6, ignore_eos=True)
    world.finish()
    world.outputs.clear()
    world.ends.clear()
    world.open(PROMPT, rid=rid, attempt=2, max_tokens=6, ignore_eos=True)
    world.finish()
    assert (world.outputs[rid, 0], world.ends[rid, 0]) == (WANTED[:6], End("length"))
    release(world, rid)


@pytest.mark.parametrize("held", [0, 1, 5, 11, 12])
def test_a_new_scheduler_resumes_from_held_output_with_the_same_text(held: int) -> None:
    world = World(shape=profile(page_size=4))
    world.outputs[b"r", 0] = WANTED[:held]
    rid = world.open(
        PROMPT,
        rid=b"r",
        attempt=3,
        max_tokens=12,
        ignore_eos=True,
        temperature=0.0,
        have=(Held(pack_ids(WANTED[:held])),),
    )
    world.finish()
    assert (world.outputs[rid, 0], world.ends[rid, 0]) == (WANTED[:12], End("length"))
    release(world, rid)


def test_an_end_within_held_output_is_found_before_anything_is_planned() -> None:
    world = World()
    world.outputs[b"r", 0] = [3, EOS]
    rid = world.open(PROMPT, rid=b"r", attempt=2, max_tokens=12, have=(Held(pack_ids([3, EOS])),))
    world.finish()
    assert world.ends[rid, 0] == End("stop")
    assert world.worker.computed == 0
    release(world, rid)


def test_choices_that_the_client_has_complete_are_not_generated_again() -> None:
    world = World()
    done = expected(PROMPT, SamplingParams(max_tokens=9, temperature=1.0, ignore_eos=True), seed=4, child=1)[0]
    have = (Held(), Held(pack_ids(done), ended=True))
    rid = world.open(PROMPT, attempt=2, n=2, seed=4, max_tokens=9, temperature=1.0, ignore_eos=True, have=have)
    world.finish()
    assert {frame.child for frame in world.frames} == {0}
    release(world, rid)


def test_a_gateway_that_holds_more_than_is_known_here_is_believed() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=20, ignore_eos=True)
    world.steps(4)
    world.outputs[rid, 0] = WANTED[:15]
    world.open(PROMPT, rid=rid, attempt=2, max_tokens=20, ignore_eos=True, have=(Held(pack_ids(WANTED[:15])),))
    world.finish()
    assert world.outputs[rid, 0] == WANTED[:20]
    release(world, rid)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2, "have": (Held(),)}, "have"),
        ({"have": (Held(b"123"),)}, "have"),
        ({"max_tokens": -1}, "params.max_tokens"),
    ],
)
def test_a_malformed_open_is_refused_with_the_field_named(fields: dict[str, Any], param: str) -> None:
    world = World()
    rid = world.open(PROMPT, **fields)
    empty = world.open([])
    world.turn()
    for opened, name in ((rid, param), (empty, "ids")):
        error = error_of(world, opened)
        assert error is not None
        assert (error.code, error.param) == ("invalid_request", name)
    world.assert_empty()


def test_without_a_worker_new_requests_are_refused_and_old_ones_wait() -> None:
    world = World(workers=0)
    fresh = world.open(PROMPT)
    again = world.open(PROMPT, attempt=2, accepted=True)
    world.turn()
    error = error_of(world, fresh)
    assert error is not None
    assert (error.code, error.retry_after_ms) == ("unavailable", 1000)
    assert error_of(world, again, 2) is None
    world.join("w0", FakeWorker(profile()))
    world.finish()
    assert (again, 0) in world.ends


def test_requests_do_not_wait_for_a_worker_for_ever() -> None:
    world = World(Settings(worker_wait_s=5), workers=0)
    rid = world.open(PROMPT, accepted=True)
    world.turn()
    world.now += 6
    world.turn()
    assert world.ends[rid, 0].code == "unavailable"


def test_a_draining_scheduler_refuses_what_is_new_and_finishes_what_is_there() -> None:
    world = World()
    old = world.open(PROMPT, max_tokens=5, ignore_eos=True)
    world.steps(1)
    world.core.drain()
    new = world.open(PROMPT)
    world.finish()
    error = error_of(world, new)
    assert error is not None
    assert error.code == "draining"
    assert world.outputs[old, 0] == WANTED[:5]


# --- detokenisers and gateways --------------------------------------------------------------------------------------------


def test_a_detokeniser_that_joins_late_is_told_everything() -> None:
    world = World()
    world.core.outbox.linked.clear()
    rid = world.open(PROMPT, max_tokens=6, ignore_eos=True)
    world.finish()
    assert not world.frames
    world.core.detokeniser_joined("d1")
    world.turn()
    assert world.outputs[rid, 0] == WANTED[:6]


def test_when_a_detokeniser_goes_its_gateways_open_again_elsewhere() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=20, ignore_eos=True)
    world.steps(5)
    world.core.detokeniser_gone("d1")
    world.steps(3)
    assert world.lost == [("g1", (rid,))]
    told = len(world.outputs[rid, 0])
    world.core.detokeniser_joined("d1")
    world.open(PROMPT, rid=rid, attempt=2, max_tokens=20, ignore_eos=True, have=(world.hold(rid),))
    world.finish()
    assert told < 6
    assert world.outputs[rid, 0] == WANTED[:20]
    release(world, rid)


def test_a_detokeniser_that_never_links_is_given_up() -> None:
    world = World()
    rid = world.open(PROMPT, detokeniser="nobody")
    world.finish()
    world.now += 4
    world.turn()
    assert world.lost == [("g1", (rid,))]
    world.now += 4
    world.turn()
    assert len(world.lost) == 1


def test_a_gateway_that_goes_takes_its_requests_with_it() -> None:
    world = World()
    mine, other = world.open(PROMPT, n=3, max_tokens=30), world.open([4, 4], gateway="g2", max_tokens=3)
    world.steps(4)
    world.core.gateway_gone("g1", world.now)
    world.finish()
    assert mine not in world.core.ledger.requests
    assert (other, 0) in world.ends
    release(world, other)


def test_reconcile_cancels_what_the_gateway_lacks_twice_and_reports_what_it_lacks_itself() -> None:
    world = World()
    kept, lost = world.open(PROMPT, max_tokens=50, ignore_eos=True), world.open([3, 3], max_tokens=50, ignore_eos=True)
    world.steps(3)
    live = Live((LiveRequest(kept, 1, (0,)), LiveRequest(b"strange", 1, (0,))))
    assert world.core.live("g1", live, world.now).unknown == (b"strange",)
    assert lost in world.core.ledger.requests
    assert world.core.live("g1", live, world.now).unknown == (b"strange",)
    assert lost not in world.core.ledger.requests
    assert kept in world.core.ledger.requests
    assert world.core.live("g1", Live((LiveRequest(kept, 2, (0,)),)), world.now).unknown == (kept,)


def test_reconcile_tells_what_the_scheduler_has_more_of() -> None:
    world = World()
    rid = world.open(PROMPT, n=2, max_tokens=5, ignore_eos=True)
    idle = world.open([3, 3], gateway="g2", max_tokens=5)

    def ahead(*offsets: int, attempt: int = 1) -> list[tuple[bytes, int, tuple[int, ...]]]:
        told = world.core.live("g1", Live((LiveRequest(rid, attempt, offsets),)), world.now).ahead
        return [(entry.rid, entry.attempt, entry.offsets) for entry in told]

    assert ahead(0, 0) == []
    while not world.outputs.get((rid, 1)):
        world.steps(1)
    counts = tuple(len(choice.output) for choice in world.core.ledger.requests[rid].choices)
    assert ahead(0, 0) == [(rid, 1, counts)]
    assert ahead(*counts) == []
    assert ahead(counts[0], 0) == [(rid, 1, counts)]
    world.finish()
    assert ahead(5, 5) == [(rid, 1, (6, 6))]  # an end counts as one
    assert ahead(6, 6) == []
    world.open(PROMPT, rid=rid, n=2, attempt=2, max_tokens=5, ignore_eos=True)
    assert ahead(0, 0) == []  # of another attempt nothing is said
    assert ahead(0, 0, attempt=2) == [(rid, 2, (6, 6))]
    assert idle in world.core.ledger.requests


def test_a_list_of_live_requests_in_parts_counts_only_when_complete() -> None:
    world = World()
    one, two = world.open([1, 2], max_tokens=50), world.open([3, 4], max_tokens=50)
    for _ in range(3):
        world.core.live("g1", Live((LiveRequest(one, 1, (0,)),), part=0, parts=2), world.now)
    assert two in world.core.ledger.requests
    for _ in range(3):
        world.core.live("g1", Live((LiveRequest(one, 1, (0,)),), part=0, parts=2), world.now)
        world.core.live("g1", Live((LiveRequest(two, 1, (0,)),), part=1, parts=2), world.now)
    assert {one, two} == set(world.core.ledger.requests)


def test_logprobs_are_dropped_once_the_gateway_has_them_and_told_again_before() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=10, ignore_eos=True, logprobs=0)
    world.finish()
    choice = world.core.ledger.requests[rid].choices[0]
    world.core.live("g1", Live((LiveRequest(rid, 1, (4,)),)), world.now)
    assert (len(choice.logprobs), choice.logprob_base) == (6, 4)
    world.ends.clear()
    world.outputs[rid, 0] = WANTED[:7]
    world.open(
        PROMPT, rid=rid, attempt=2, max_tokens=10, ignore_eos=True, logprobs=0, have=(Held(pack_ids(WANTED[:7])),)
    )
    world.finish()
    assert [entry.id for entry in world.frames[-1].logprobs] == WANTED[7:10]


def test_a_done_request_nobody_cancels_is_forgotten_after_a_minute() -> None:
    world = World()
    world.open(PROMPT, max_tokens=2)
    world.finish()
    world.now += 61
    world.turn()
    world.assert_empty()


# --- grammars -----------------------------------------------------------------------------------------------------------------

SPEC = GrammarSpec("regex", "[0-9]+")
JUDGED = Verdict(Grammar("digest", "llguidance", "regex", "5"))


def test_a_grammar_is_asked_for_once_and_nothing_else_waits_for_it() -> None:
    world = World()
    waiting = [world.open(PROMPT, grammar=SPEC, max_tokens=20, ignore_eos=True) for _ in range(3)]
    other = world.open([4, 4], max_tokens=3, ignore_eos=True)
    world.finish()
    assert world.compiles == [SPEC]
    assert (other, 0) in world.ends
    assert not any((rid, 0) in world.outputs for rid in waiting)
    world.core.verdict(SPEC, JUDGED)
    world.finish()
    for rid in waiting:
        assert error_of(world, rid) is None
        assert (world.outputs[rid, 0], world.ends[rid, 0]) == (WANTED[:5], End("stop"))
    later = world.open(PROMPT, grammar=SPEC, max_tokens=20, ignore_eos=True)
    world.finish()
    assert world.compiles == [SPEC]
    release(world, *waiting, other, later)


def test_a_judged_request_enters_the_queue_in_its_place() -> None:
    world = World(shape=profile(slots=1))
    first = world.open(PROMPT, grammar=SPEC, max_tokens=2, ignore_eos=True)
    others = [world.open([4 + number], max_tokens=2, ignore_eos=True) for number in range(3)]
    world.turn()
    world.core.verdict(SPEC, JUDGED)
    world.finish()
    assert [frame.rid for frame in world.frames if frame.end] == [others[0], first, *others[1:]]


def test_a_refused_grammar_ends_its_requests_and_the_next_is_refused_at_once() -> None:
    world = World()
    refusal = ErrorInfo("grammar_invalid", "unclosed bracket", param="grammar")
    rid = world.open(PROMPT, grammar=SPEC, n=2)
    world.turn()
    world.core.verdict(SPEC, Verdict(error=refusal))
    next_one = world.open(PROMPT, grammar=SPEC)
    world.finish()
    for child in range(2):
        assert world.ends[rid, child] == End("error", code="grammar_invalid", message="unclosed bracket")
    assert error_of(world, next_one) == refusal
    assert world.compiles == [SPEC]
    release(world, rid)


def test_a_failure_of_the_moment_does_not_stick_to_the_grammar() -> None:
    world = World()
    rid = world.open(PROMPT, grammar=SPEC)
    world.turn()
    world.core.verdict(SPEC, Verdict(error=ErrorInfo("unavailable", "no grammar service is ready")))
    again = world.open(PROMPT, grammar=SPEC, max_tokens=3, ignore_eos=True)
    world.turn()
    assert world.ends[rid, 0].code == "unavailable"
    assert len(world.compiles) == 2
    world.core.verdict(SPEC, JUDGED)
    world.finish()
    assert (again, 0) in world.ends


def test_a_request_cancelled_while_judged_leaves_the_others_waiting() -> None:
    world = World()
    gone, stays = (world.open(PROMPT, grammar=SPEC, max_tokens=3, ignore_eos=True) for _ in range(2))
    world.turn()
    world.cancel(gone)
    world.core.verdict(SPEC, JUDGED)
    world.finish()
    assert (stays, 0) in world.ends
    assert (gone, 0) not in world.ends
    release(world, stays)


def test_a_deadline_passes_while_a_grammar_is_judged() -> None:
    world = World()
    rid = world.open(PROMPT, grammar=SPEC, deadline_ms=500)
    world.turn()
    world.now += 1
    world.turn()
    assert world.ends[rid, 0].code == "deadline"
    release(world, rid)


def test_a_row_the_worker_gives_up_ends_with_an_error_and_others_go_on() -> None:
    world = World()
    bad, good = world.open(PROMPT, max_tokens=5), world.open([4, 4], max_tokens=5, ignore_eos=True)
    world.turn()
    result = world.worker.run(world.plans["w0"].popleft())
    failure = RowFailure(0, "nan", "the logits are not numbers")
    world.core.result("w0", Result(result.step, result.yields, result.ids, failures=(failure,)))
    world.finish()
    assert (world.ends[bad, 0].reason, world.ends[bad, 0].code) == ("error", "internal")
    assert world.ends[good, 0] == End("length")
    release(world, bad, good)


def test_large_output_is_split_and_what_fits_no_message_is_an_error() -> None:
    world = World(shape=profile(pages=64))
    rid = world.open(PROMPT, max_tokens=5, ignore_eos=True, logprobs=0)
    world.finish()
    frame = world.frames[-1]
    big = TokenFrame(rid, 1, 0, 0, bytes(400_000))
    assert [len(part) for part in parts([big, big, big, frame, big])] == [2, 3]
    again = world.open([4, 4], max_tokens=50, ignore_eos=True, logprobs=0)
    world.steps(3)
    world.core.undeliverable(Output((TokenFrame(again, 1, 0, 0, b""),)))
    world.finish()
    assert world.ends[again, 0].code == "too_large"
    release(world, rid, again)


# --- workers ------------------------------------------------------------------------------------------------------------------


def test_a_lost_worker_is_a_pause() -> None:
    world = World()
    rids = [world.open([number, *PROMPT], max_tokens=15, ignore_eos=True) for number in range(1, 5)]
    world.steps(6)
    world.core.worker_gone("w0")
    world.turn()
    assert not world.ends
    world.join("w0", FakeWorker(profile()))
    world.finish()
    for number, rid in zip(range(1, 5), rids, strict=True):
        assert world.outputs[rid, 0] == expected([number, *PROMPT], FREE)[0][:15]
    release(world, *rids)


def test_a_request_that_breaks_its_worker_again_and_again_is_given_up() -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=15)
    for _ in range(3):
        world.turn()
        world.turn()  # the first of the two opened the new session
        world.core.step_failed("w0", world.plans["w0"][0].step, "boom")
    world.turn()
    assert (world.ends[rid, 0].reason, world.ends[rid, 0].code) == ("error", "internal")
    assert world.core.counters.failed_steps == 3


@pytest.mark.parametrize(
    "result",
    [Result(7, b"\x01", pack_ids([3])), Result(1, b"\x01\x01", pack_ids([3, 3])), Result(1, b"\x01", b"")],
)
def test_a_result_that_does_not_fit_its_plan_renews_the_session(result: Result) -> None:
    world = World()
    rid = world.open(PROMPT, max_tokens=9, ignore_eos=True)
    world.turn()
    world.core.result("w0", result)
    world.finish()
    assert world.outputs[rid, 0] == WANTED[:9]
    release(world, rid)


def test_several_workers_share_the_load_and_any_of_them_replays() -> None:
    world = World(workers=2)
    rids = [world.open([number, *PROMPT], max_tokens=20, ignore_eos=True) for number in range(1, 9)]
    world.steps(1)
    assert [len(worker.rows) for worker in world.core.workers.values()] == [4, 4]
    world.core.worker_gone("w1")
    world.plans["w1"].clear()
    world.finish()
    for number, rid in zip(range(1, 9), rids, strict=True):
        assert world.outputs[rid, 0] == expected([number, *PROMPT], FREE)[0][:20]


# --- flush --------------------------------------------------------------------------------------------------------------------


def test_a_flush_waits_until_nothing_runs_and_then_empties_every_cache() -> None:
    world = World(shape=profile(page_size=4))
    rid = world.open(PROMPT * 4, max_tokens=5, ignore_eos=True)
    world.core.flush(10_000, "flush", world.now)
    world.steps(2)
    assert "flush" not in world.replies
    world.finish()
    assert world.replies["flush"] == FlushReply(flushed_pages=6)
    assert world.core.workers["w0"].cache.pool.free == 64
    release(world, rid)


def test_a_flush_gives_up_at_its_timeout() -> None:
    world = World()
    world.open(PROMPT, max_tokens=50, ignore_eos=True)
    world.core.flush(0, "flush", world.now)
    world.turn()
    reply = world.replies["flush"]
    assert reply.error is not None
    assert reply.error.code == "busy"
