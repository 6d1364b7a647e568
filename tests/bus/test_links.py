"""Links over a bus: handshake, sessions, loss, and how both ends learn that it is over."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
from trio.testing import MockClock

from phloem_bus import link_core
from phloem_bus.errors import HelloRefused, LinkClosed, NoResponders, PayloadTooLarge, TimedOut
from phloem_bus.faults import Faults
from phloem_bus.link import Link
from phloem_bus.local import LocalBroker
from phloem_bus.node import Received
from phloem_bus.presence import Peer
from phloem_proto.messages import (
    ErrorInfo,
    Hello,
    HelloReply,
    LinkFrame,
    Plan,
    Profile,
    Result,
    WorkerLinkDown,
    WorkerLinkUp,
)
from phloem_proto.subjects import Role

from .actors import Actor, drive


def plan(step: int, rows: bytes = b"") -> Plan:
    return Plan(step, rows, b"")


class Pair:
    """A scheduler that links to a worker; the worker answers each plan with a result."""

    def __init__(self, broker: LocalBroker, worker_profile: Profile | None = None) -> None:
        self.broker = broker
        self.scheduler = Actor(broker, Role.SCHEDULER, "s", [Role.WORKER], incarnation=1)
        self.worker = Actor(
            broker, Role.WORKER, "w", [Role.SCHEDULER], incarnation=2, profile=worker_profile, term=lambda: 7
        )
        self.plans: list[int] = []
        self.results: list[int] = []
        self.events: list[str] = []
        self.greeting: list[Result] = []
        self.accepted: list[Link] = []
        self.admit: Callable[[Received[Hello]], Awaitable[ErrorInfo | None]] = self._admit
        self.on_plan: Callable[[Link, Plan], None] = lambda link, message: link.send(Result(message.step, b"", b""))
        self.accept(self.worker)

    def accept(self, worker: Actor) -> None:
        worker.links.accept(
            Role.SCHEDULER,
            receives=WorkerLinkDown,
            profile=lambda: worker.profile,
            admit=lambda received: self.admit(received),
            on_open=self._opened,
            on_message=self._on_plan,
            on_gone=lambda link: self.events.append(f"worker lost {link.session == self.accepted[-1].session}"),
        )

    async def _admit(self, _: Received[Hello]) -> ErrorInfo | None:
        return None

    def _opened(self, link: Link) -> None:
        self.accepted.append(link)
        self.events.append("worker open")
        for message in self.greeting:
            link.send(message)

    def _on_plan(self, link: Link, message: Plan) -> None:
        self.plans.append(message.step)
        self.on_plan(link, message)

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        await self.scheduler.start(tasks)
        await self.worker.start(tasks)
        await anyio.sleep(1)

    @property
    def peer(self) -> Peer:
        peer = self.scheduler.presence.get(Role.WORKER, "w")
        assert peer is not None
        return peer

    async def connect(self, **options: Any) -> Link:
        return await self.scheduler.links.connect(
            options.pop("peer", None) or self.peer,
            receives=WorkerLinkUp,
            on_message=lambda link, message: self.results.append(message.step),
            on_gone=lambda link: self.events.append("scheduler lost"),
            profile=options.pop("profile", Profile("m")),
            **options,
        )


def with_pair(test: Callable[[Pair], Awaitable[None]], *, seed: int = 0, **options: Any) -> None:
    async def main(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            pair = Pair(LocalBroker(), **options)
            await pair.start(tasks)
            await test(pair)
            tasks.cancel_scope.cancel()

    drive(main, seed=seed)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - virtual time
            await anyio.sleep(0.01)


def test_messages_flow_both_ways_at_once() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect(term=3)
        assert (link.peer_role, link.peer_instance, link.peer_incarnation, link.term) == (Role.WORKER, "w", 2, 3)
        assert pair.accepted[0].peer_incarnation == 1
        assert pair.accepted[0].session == link.session
        start = anyio.current_time()
        for step in range(500):
            link.send(plan(step))
        await until(lambda: len(pair.results) == 500)
        assert anyio.current_time() - start < 0.02  # nothing waited for a timer
        assert pair.plans == pair.results == list(range(500))
        await anyio.sleep(0.2)
        assert (link.unacknowledged, pair.accepted[0].unacknowledged) == (0, 0)

    with_pair(test)


@pytest.mark.parametrize("seed", range(8))
def test_over_a_bad_bus_every_message_is_applied_once_and_in_order(seed: int) -> None:
    async def main(_: MockClock) -> None:
        rng = random.Random(seed)
        faults = Faults(rng, delay_s=(0.0, 0.2))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run)
            pair = Pair(LocalBroker(faults=faults))
            await pair.start(tasks)
            link = await pair.connect()
            faults.drop, faults.duplicate = 0.2, 0.2
            for step in range(300):
                link.send(plan(step))
                await anyio.sleep(rng.choice([0.0, 0.0, 0.01, 0.1]))
                assert pair.plans == list(range(len(pair.plans)))
                assert pair.results == list(range(len(pair.results)))
            faults.heal()
            await until(lambda: len(pair.results) == 300)
            assert pair.plans == pair.results == list(range(300))
            assert pair.events == ["worker open"]
            tasks.cancel_scope.cancel()

    drive(main, seed=seed)


def test_a_link_survives_a_broker_that_restarts() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        for step in range(50):
            link.send(plan(step))
        pair.broker.stop()
        for step in range(50, 100):
            link.send(plan(step))
        await anyio.sleep(30)
        pair.broker.start()
        start = anyio.current_time()
        await until(lambda: len(pair.results) == 100)
        assert anyio.current_time() - start < 1.5
        assert pair.plans == pair.results == list(range(100))
        assert pair.events == ["worker open"]

    with_pair(test)


def test_a_new_session_replaces_the_former_and_its_frames_are_refused() -> None:
    async def test(pair: Pair) -> None:
        first = await pair.connect()
        first.send(plan(1))
        await until(lambda: pair.results == [1])
        second = await pair.connect()
        assert pair.events == ["worker open", "worker lost True", "worker open"]  # the old one's end comes first
        assert not first.open
        with pytest.raises(LinkClosed):
            first.send(plan(2))
        second.send(plan(3))
        await until(lambda: pair.results == [1, 3])
        stale = LinkFrame(first.session, 0, 2, 0, 2, b"")
        await pair.scheduler.node.send(Role.WORKER, "w", stale)
        await pair.scheduler.node.send(Role.WORKER, "w", LinkFrame(second.session, 99, 2, 0, 2, b""))
        imposter = Actor(pair.broker, Role.SCHEDULER, "s", [], incarnation=99)
        await imposter.node.send(Role.WORKER, "w", LinkFrame(second.session, 0, 2, 0, 2, b""))
        await anyio.sleep(0.1)
        assert pair.worker.node.refused == {"session": 1, "term": 1, "incarnation": 1}
        assert second.open

    with_pair(test)


def test_closing_tells_the_other_end_only() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        link.close()
        await anyio.sleep(0.1)
        assert pair.events == ["worker open", "worker lost True"]
        link = await pair.connect()
        pair.accepted[-1].close()
        await anyio.sleep(0.1)
        assert pair.events[2:] == ["worker open", "scheduler lost"]
        assert not link.open

    with_pair(test)


def test_both_ends_learn_that_a_peer_was_killed() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        pair.worker.kill()
        await anyio.sleep(1.5)
        assert pair.events == ["worker open", "scheduler lost"]
        assert not link.open

    with_pair(test)


def test_a_peer_that_has_forgotten_the_session_says_so() -> None:
    async def main(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            pair = Pair(LocalBroker())
            await pair.start(tasks)
            await pair.connect()
            pair.worker.links._links.clear()  # as after a false "gone" on its side only
            await anyio.sleep(2)
            assert pair.events == ["worker open", "scheduler lost"]
            tasks.cancel_scope.cancel()

    drive(main)


def test_a_restarted_peer_gets_no_frames_of_its_former_self() -> None:
    async def main(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            pair = Pair(LocalBroker())
            await pair.start(tasks)
            link = await pair.connect()
            pair.worker.kill()
            again = Actor(pair.broker, Role.WORKER, "w", [Role.SCHEDULER], incarnation=3)
            pair.accept(again)
            await again.start(tasks)
            link.send(plan(1))
            await anyio.sleep(1)
            assert pair.plans == []
            assert pair.events == ["worker open", "scheduler lost"]
            await pair.connect()
            assert pair.events[2:] == ["worker open"]
            tasks.cancel_scope.cancel()

    drive(main)


def with_digest(part: str, digest: str) -> Profile:
    return msgspec.structs.replace(Profile("m"), **{part: digest})


@pytest.mark.parametrize("part", ["model_digest", "tokenizer_digest", "sampler"])
def test_profiles_that_do_not_match_are_refused(part: str) -> None:
    async def test(pair: Pair) -> None:
        with pytest.raises(HelloRefused) as caught:
            await pair.connect(profile=with_digest(part, "mine"))
        assert caught.value.code == "mismatch"
        assert part.replace("_", " ") in caught.value.message
        assert pair.events == []
        await pair.connect(profile=with_digest(part, "theirs"))
        await pair.connect(profile=Profile("m"))  # nothing said fits everything

    with_pair(test, worker_profile=with_digest(part, "theirs"))


def test_protocol_versions_that_do_not_meet_are_refused() -> None:
    async def test(pair: Pair) -> None:
        cases = ((1, 1, True), (1, 9, True), (2, 9, False), (0, 0, False))
        for session, (low, high, good) in enumerate(cases):
            reply = await pair.scheduler.node.call(
                Role.WORKER, "w", Hello(session, 0, low, high, Profile("m")), HelloReply, timeout=1
            )
            assert (reply.error is None) == good
            assert good or (reply.error is not None and reply.error.code == "mismatch")

    with_pair(test)


def test_a_refusal_reaches_the_caller_with_the_term() -> None:
    async def test(pair: Pair) -> None:
        async def fence(_: Received[Hello]) -> ErrorInfo | None:
            return ErrorInfo("fenced", "another leads")

        pair.admit = fence
        with pytest.raises(HelloRefused) as caught:
            await pair.connect()
        assert (caught.value.code, caught.value.term) == ("fenced", 7)
        assert pair.scheduler.links.all() == []

    with_pair(test)


def test_admission_may_take_its_time_and_the_newest_hello_wins() -> None:
    async def test(pair: Pair) -> None:
        running: list[str] = []

        async def drain_device(received: Received[Hello]) -> ErrorInfo | None:
            running.append("start")
            await anyio.sleep(2)
            running.append("end")
            return None

        pair.admit = drain_device
        outcomes: list[str] = []

        async def try_it() -> None:
            try:
                await pair.connect()
                outcomes.append("open")
            except HelloRefused as error:
                outcomes.append(error.code)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(try_it)
                await anyio.sleep(0.1)
        assert outcomes == ["stale", "stale", "open"]
        assert running == [
            "start",
            "end",
            "start",
            "end",
        ]  # one at a time; the overtaken one in the middle is not even tried
        assert pair.events == ["worker open"]

    with_pair(test)


def test_a_hello_that_nobody_answers_leaves_no_half_open_link() -> None:
    async def test(pair: Pair) -> None:
        peer = pair.peer

        async def hang(_: Received[Hello]) -> ErrorInfo | None:
            await anyio.sleep(1)
            return None

        pair.admit = hang
        with pytest.raises(TimedOut):
            await pair.connect(timeout=0.5)
        await anyio.sleep(3)  # the worker opened its end; the answer to its first frame closes it again
        assert pair.events == ["worker open", "worker lost True"]
        pair.worker.kill()
        with pytest.raises(NoResponders):
            await pair.connect(peer=peer)
        assert pair.scheduler.links.all() == []

    with_pair(test)


def test_what_comes_before_the_answer_to_hello_is_not_lost() -> None:
    async def test(pair: Pair) -> None:
        pair.greeting = [Result(step, b"", b"") for step in range(10)]  # sent in on_open, so ahead of the answer
        link = await pair.connect()
        await anyio.sleep(0.01)
        assert pair.results == list(range(10))
        assert link.open

    with_pair(test)


def test_a_message_that_cannot_be_applied_ends_the_link_on_both_sides() -> None:
    async def test(pair: Pair) -> None:
        def fail(_: Link, message: Plan) -> None:
            raise RuntimeError("no")

        pair.on_plan = fail
        link = await pair.connect()
        link.send(plan(1))
        link.send(plan(2))
        await anyio.sleep(0.1)
        assert pair.plans == [1]
        assert sorted(pair.events) == ["scheduler lost", "worker lost True", "worker open"]
        link = await pair.connect()
        link.send(Result(1, b"", b""))  # of the other direction's union
        await anyio.sleep(0.1)
        assert not link.open

    with_pair(test)


def test_too_large_a_message_is_refused_at_send() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        limit = pair.broker.max_payload
        with pytest.raises(PayloadTooLarge):
            link.send(plan(1, bytes(limit)))
        link.send(plan(2, bytes(limit - 600)))
        await until(lambda: pair.plans == [2])

    with_pair(test)


def test_a_peer_that_beats_and_applies_nothing_is_gone_after_three_seconds() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        pair.worker.node._handlers[LinkFrame] = []
        for step in range(1100):
            link.send(plan(step))
        await anyio.sleep(2.5)
        assert link.open
        await anyio.sleep(2)
        assert not link.open
        assert pair.events == ["worker open", "scheduler lost"]

    with_pair(test)


def test_a_backlog_over_its_bound_ends_the_link() -> None:
    async def test(pair: Pair) -> None:
        link = await pair.connect()
        pair.broker.stop()
        for step in range(link_core.BACKLOG_FRAMES):
            link.send(plan(step))
        with pytest.raises(LinkClosed):
            link.send(plan(0))
        await anyio.sleep(0.1)
        assert not link.open
        assert pair.events == ["worker open", "scheduler lost"]

    with_pair(test)
