"""The scheduler as a service on the local bus, under asyncio and trio."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from phloem_bus.errors import ConfigError
from phloem_bus.service import Service
from phloem_proto.codec import pack_ids
from phloem_proto.messages import (
    Cancel,
    Compile,
    End,
    ErrorInfo,
    Flush,
    FlushReply,
    Grammar,
    GrammarSpec,
    Held,
    KvEvents,
    KvWatch,
    KvWatchReply,
    Live,
    LiveReply,
    LiveRequest,
    SamplingParams,
    Verdict,
)
from phloem_proto.subjects import KV, Role
from phloem_scheduler import desk
from phloem_scheduler.config import SchedulerConfig
from phloem_scheduler.leadership import Claim, Leadership
from phloem_scheduler.service import SchedulerService

from .fake_worker import expected
from .town import Detokeniser, Judge, Worker, town

pytestmark = pytest.mark.anyio

PROMPT = [5, 6, 7, 8, 9]
FREE = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
WANTED = expected(PROMPT, FREE)[0]


async def test_requests_run_end_to_end_and_leave_nothing() -> None:
    async with town(workers=2) as place:
        replies = [await place.open([*PROMPT, tail], n=2, max_tokens=12) for tail in range(1, 9)]
        assert all(reply.error is None for reply in replies)
        await place.until(lambda: len(place.ends) == 16)
        for tail, reply in zip(range(1, 9), replies, strict=True):
            for child in range(2):
                assert place.outputs[reply.rid, child] == expected([*PROMPT, tail], FREE)[0][:12]
        for reply in replies:
            await place.gateway.node.send(Role.SCHEDULER, "s1", Cancel(reply.rid, 1))
        core = place.service.core
        await place.until(lambda: core.idle and not core.ledger.requests)
        core.check()


async def test_a_killed_worker_is_a_pause() -> None:
    async with town(workers=0) as place:
        first = Worker(place.broker, "w1")
        place.start(first)
        await place.until(lambda: place.service.core.workers)
        reply = await place.open(PROMPT, max_tokens=150)
        await place.until(lambda: len(place.outputs.get((reply.rid, 0), [])) > 3)
        first.kill()
        await place.until(lambda: not place.service.core.workers)
        place.start(Worker(place.broker, "w2"))
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED[:150]


async def test_a_failed_step_opens_a_new_session_and_changes_nothing() -> None:
    async with town(workers=0) as place:
        place.start(Worker(place.broker, "w1", fail_at=6))
        await place.until(lambda: place.service.core.workers)
        reply = await place.open(PROMPT, max_tokens=20)
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED[:20]
        assert place.service.core.counters.failed_steps == 1


async def test_a_worker_that_dies_before_it_answers_can_come_again_at_once() -> None:
    async with town(workers=0) as place:
        hung = Worker(place.broker, "w1", silent=True)
        place.start(hung)
        await anyio.sleep(0.5)
        hung.kill()
        place.start(Worker(place.broker, "w1", incarnation=2))
        await place.until(lambda: place.service.core.workers, within=5.0)


async def test_a_killed_detokeniser_is_told_to_gateways_which_open_again() -> None:
    async with town() as place:
        other = Detokeniser(place.broker, "d2", place.heard)
        place.start(other)
        await place.until(lambda: len(place.service.core.outbox.linked) == 2)
        reply = await place.open(PROMPT, detokeniser="d2", max_tokens=200)
        await place.until(lambda: len(place.outputs.get((reply.rid, 0), [])) > 3)
        other.kill()
        await place.until(lambda: place.gateway.lost)
        assert place.gateway.lost == [reply.rid]
        have = (Held(pack_ids(place.outputs[reply.rid, 0])),)
        again = await place.open(PROMPT, rid=reply.rid, attempt=2, have=have, max_tokens=200)
        assert again.error is None
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED


async def test_a_gateway_that_says_it_holds_nothing_gets_its_requests_cancelled() -> None:
    async with town() as place:
        reply = await place.open(PROMPT, max_tokens=200)
        live = Live((LiveRequest(b"x" * 16, 1, (0,)),))
        for _ in range(2):
            answer = await place.gateway.node.call(Role.SCHEDULER, "s1", live, LiveReply, timeout=2.0)
            assert answer.unknown == (b"x" * 16,)
        await place.until(lambda: reply.rid not in place.service.core.ledger.requests)


async def test_a_killed_gateway_frees_everything() -> None:
    async with town() as place:
        await place.open(PROMPT, max_tokens=100_000, n=3)
        place.gateway.kill()
        await place.until(lambda: not place.service.core.ledger.requests)
        await place.until(lambda: place.service.core.idle)


async def test_a_break_of_the_bus_shows_as_one_gap_in_the_cache_events() -> None:
    got: list[KvEvents] = []
    async with town() as place:
        node = place.gateway.node
        node.on(KvEvents, lambda received: got.append(received.message))
        await place.tasks.start(node.join, KV, KvEvents)
        watch = await node.call(Role.SCHEDULER, "s1", KvWatch("g1"), KvWatchReply, timeout=2.0)
        assert watch.error is None
        await place.open(PROMPT * 4, max_tokens=1)
        await place.until(lambda: place.ends and got)
        place.broker.stop()
        place.broker.start()
        gaps: list[KvEvents] = []

        def gap() -> bool:
            gaps[:] = [after for before, after in pairwise(got) if after.seq != before.seq + 1]
            return bool(gaps)

        await place.until(gap)
        assert [(one.snapshot, one.events) for one in gaps] == [(0, ())]


async def test_a_snapshot_waits_until_the_bus_has_taken_what_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[KvEvents] = []
    async with town() as place:
        node = place.gateway.node
        node.on(KvEvents, lambda received: got.append(received.message))
        await place.tasks.start(node.join, KV, KvEvents)
        monkeypatch.setattr(desk, "MOST_UNSENT", -1)  # as if there were always something that waits
        for snapshot in (False, True, True):
            watch = await node.call(Role.SCHEDULER, "s1", KvWatch("g1", snapshot), KvWatchReply, timeout=2.0)
            assert watch.error is None
        await place.open(PROMPT * 4, max_tokens=1)
        await place.until(lambda: place.ends and got)
        assert {one.snapshot for one in got} == {0}
        monkeypatch.setattr(desk, "MOST_UNSENT", 16)
        await place.until(lambda: any(one.snapshot for one in got))


async def test_grammars_are_judged_by_whoever_answers() -> None:
    busy = Verdict(error=ErrorInfo("busy", "later"))
    spec = GrammarSpec("regex", "a+")
    async with town() as place:
        judges = [
            Judge(place.broker, "j1", [busy, Verdict(Grammar("digest", "llguidance", "regex", "4"))]),
            Judge(place.broker, "j2", [busy, Verdict(Grammar("digest", "llguidance", "regex", "4"))]),
        ]
        for judge in judges:
            place.start(judge)
        await place.until(lambda: place.gateway.presence.peers(Role.SCHEDULER)[0].load.grammars == 2)
        reply = await place.open(PROMPT, grammar=spec, max_tokens=50)
        assert reply.error is None
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED[:4]
        asked = [compile_.spec for judge in judges for compile_ in judge.asked]
        assert set(asked) == {spec}
        assert all(
            isinstance(compile_, Compile) and compile_.deadline_ms > 0 for judge in judges for compile_ in judge.asked
        )


async def test_a_verdict_that_is_lost_is_asked_for_again() -> None:
    good = Verdict(Grammar("digest", "llguidance", "regex", "4"))
    async with town() as place:
        judge = Judge(place.broker, "j1", [good])
        judge.deaf_to = 1
        place.start(judge)
        await place.until(lambda: place.gateway.presence.peers(Role.SCHEDULER)[0].load.grammars == 1)
        reply = await place.open(PROMPT, grammar=GrammarSpec("regex", "a+"), max_tokens=50)
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED[:4]
        first, second = judge.asked
        assert first.spec == second.spec


async def test_without_a_grammar_service_only_grammar_requests_fail() -> None:
    async with town(SchedulerConfig(chunk_tokens=64, compile_timeout_s=0.3)) as place:
        constrained = await place.open(PROMPT, grammar=GrammarSpec("regex", "a+"))
        plain = await place.open(PROMPT, max_tokens=4)
        await place.until(lambda: len(place.ends) == 2)
        assert place.ends[plain.rid, 0] == End("length")
        assert place.ends[constrained.rid, 0].code == "unavailable"


async def test_a_flush_empties_the_cache() -> None:
    async with town() as place:
        await place.open(PROMPT * 8, max_tokens=4)
        await place.until(lambda: place.ends)
        answer = await place.gateway.node.call(Role.SCHEDULER, "s1", Flush(2000), FlushReply, timeout=3.0)
        assert answer.error is None
        assert answer.flushed_pages == 10


async def test_a_drain_finishes_what_is_there_and_refuses_what_comes() -> None:
    async with town() as place:
        reply = await place.open(PROMPT, max_tokens=150)
        place.drain.set()
        await place.until(lambda: place.ready[-1:] == [False])
        late = await place.open(PROMPT)
        assert late.error is not None
        assert late.error.code == "draining"
        await place.until(place.stopped.is_set)
        assert place.outputs[reply.rid, 0] == WANTED[:150]
        assert place.ready == [True, False]


async def test_a_detokeniser_of_another_model_gets_no_link() -> None:
    async with town() as place:
        place.start(Detokeniser(place.broker, "odd", place.heard, digest="another"))
        await anyio.sleep(0.6)
        assert list(place.service.core.outbox.linked) == ["d1"]


async def test_a_second_scheduler_stands_by_until_the_first_has_left() -> None:
    async with town() as place:
        standby = SchedulerService(SchedulerConfig(chunk_tokens=64))
        drain = anyio.Event()
        place.tasks.start_soon(place.serve, standby, "s2", drain)

        def terms() -> dict[str, int]:
            return {peer.instance: peer.term for peer in place.gateway.presence.peers(Role.SCHEDULER)}

        await place.until(lambda: len(terms()) == 2)
        await anyio.sleep(1.0)  # longer than it listens before it would lead
        assert terms() == {"s1": 1, "s2": 0}
        place.drain.set()
        await place.until(place.stopped.is_set)
        await place.until(lambda: terms() == {"s2": 2} and standby.core.workers and standby.core.outbox.linked)
        reply = await place.open(PROMPT, scheduler="s2", max_tokens=5)
        assert reply.error is not None
        assert reply.error.code == "unavailable"  # the gateway may still hold what the first one led
        await place.announce("s2")
        reply = await place.open(PROMPT, scheduler="s2", max_tokens=5)
        await place.until(lambda: place.ends)
        assert place.outputs[reply.rid, 0] == WANTED[:5]


def test_the_higher_term_leads_and_equal_numbers_are_decided_by_name() -> None:
    ours = Leadership("b")
    assert ours.take() == 1
    ours.sees([Claim(True, 1, "a")], has_workers=True)
    assert ours.number == 1
    ours.sees([Claim(True, 1, "c")], has_workers=True)
    assert ours.number == 0
    ours.sees([Claim(True, 7, "c")], has_workers=False)
    assert ours.take() == 8
    ours.fenced(9, others_lead=False)
    assert ours.number == 10
    ours.fenced(12, others_lead=True)
    assert ours.number == 0


def test_who_has_no_worker_yields_to_who_has_some_whatever_their_terms() -> None:
    standby = Leadership("b", number=5, highest=5)
    standby.sees([Claim(True, 1, "a")], has_workers=False)
    assert standby.number == 0
    leader = Leadership("a", number=1, highest=1)
    leader.sees([Claim(False, 5, "b")], has_workers=True)
    assert (leader.number, leader.highest) == (1, 5)


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("--depth", {"depth": 4}),
        ("--chunk-ms", {"chunk_ms": 0}),
        ("--chunk-tokens", {"chunk_tokens": -1}),
        ("--max-running", {"max_running": 0}),
        ("--max-queued", {"max_queued": 0}),
        ("--policy", {"policy": "lifo"}),
        ("--reserve", {"reserve": 1.1}),
        ("--worker-wait", {"worker_wait_s": -1}),
        ("--compile-timeout", {"compile_timeout_s": 0}),
    ],
)
def test_a_setting_that_can_not_be_used_is_named(setting: str, fields: dict[str, float | str]) -> None:
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(**fields)  # type: ignore[arg-type]
    assert caught.value.setting == setting


def test_it_is_a_service() -> None:
    service: Service = SchedulerService()
    assert service.role is Role.SCHEDULER
