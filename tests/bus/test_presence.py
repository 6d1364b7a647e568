"""Who is there: joining, leaving, dying fast and slowly, and when nobody may be declared dead."""

from __future__ import annotations

import random

import anyio
import pytest
from trio.testing import MockClock

from phloem_bus.errors import NoPeer, NoResponders, TimedOut
from phloem_bus.faults import Faults
from phloem_bus.local import LocalBroker
from phloem_bus.node import Received
from phloem_proto.messages import Compile, ErrorInfo, GrammarSpec, Load, Verdict
from phloem_proto.subjects import Role

from .actors import Actor, drive

SPEC = Compile(GrammarSpec("regex", "a"))


async def pair(
    tasks: anyio.abc.TaskGroup, broker: LocalBroker, instances: int = 1, serving: bool = True
) -> tuple[Actor, list[Actor]]:
    """A scheduler and some grammar services that know each other."""
    scheduler = await Actor(broker, Role.SCHEDULER, "s", [Role.GRAMMAR]).start(tasks)
    grammars = []
    for number in range(instances):
        grammar = Actor(broker, Role.GRAMMAR, f"g{number}", [Role.SCHEDULER], incarnation=10 + number)
        if serving:
            serve(grammar)
        grammars.append(await grammar.start(tasks))
    await anyio.sleep(1)
    assert [peer.instance for peer in scheduler.presence.peers(Role.GRAMMAR)] == [f"g{n}" for n in range(instances)]
    return scheduler, grammars


def serve(grammar: Actor, *, delay: float = 0.01, busy: bool = False) -> None:
    async def compile_it(received: Received[Compile]) -> Verdict:
        await anyio.sleep(delay)
        return Verdict(error=ErrorInfo("busy", "") if busy else None)

    grammar.node.serve(Compile, compile_it, limit=4, busy=lambda _: Verdict(error=ErrorInfo("busy", "")))


def is_busy(verdict: Verdict) -> bool:
    return verdict.error is not None


def test_peers_appear_change_and_leave() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            broker = LocalBroker()
            scheduler = await Actor(broker, Role.SCHEDULER, "s", [Role.GRAMMAR]).start(tasks)
            grammar = await Actor(broker, Role.GRAMMAR, "g", [Role.SCHEDULER]).start(tasks, state="starting")
            await anyio.sleep(0.5)
            assert scheduler.presence.choose(Role.GRAMMAR) is None  # there, and not ready
            grammar.presence.set_state("ready")
            await anyio.sleep(0.01)  # told at once, not with the next beat
            peer = scheduler.presence.choose(Role.GRAMMAR)
            assert peer is not None
            assert (peer.instance, peer.state, peer.profile.model) == ("g", "ready", "m")
            grammar.presence.set_state("draining")
            await anyio.sleep(0.01)
            assert scheduler.presence.choose(Role.GRAMMAR) is None
            await grammar.presence.goodbye()
            await anyio.sleep(0.01)
            assert scheduler.presence.get(Role.GRAMMAR, "g") is None
            await anyio.sleep(1)  # no beat after the goodbye brings it back
            assert scheduler.news == [("join", "g"), ("ready", "g"), ("draining", "g"), ("gone", "g")]
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_killed_peer_is_gone_within_a_second() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, (grammar,) = await pair(tasks, LocalBroker())
            grammar.kill()
            await anyio.sleep(1.1)
            assert scheduler.news[-1] == ("gone", "g0")
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_call_that_finds_nobody_gets_the_peer_no_more_work() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, (grammar,) = await pair(tasks, LocalBroker())
            grammar.kill()
            with pytest.raises(NoResponders):
                await scheduler.presence.call(Role.GRAMMAR, SPEC, Verdict, timeout=5)
            assert scheduler.presence.choose(Role.GRAMMAR) is None
            await anyio.sleep(0.7)  # and it is gone half a second later
            assert scheduler.news[-1] == ("gone", "g0")
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_silent_peer_is_suspect_then_gone_and_comes_back_when_heard() -> None:
    async def test(_: MockClock) -> None:
        faults = Faults(random.Random(0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run)
            scheduler, _grammars = await pair(tasks, LocalBroker(faults=faults))
            faults.partition("s", "g0")
            await anyio.sleep(0.45)
            assert scheduler.presence.choose(Role.GRAMMAR) is not None
            await anyio.sleep(0.5)
            peer = scheduler.presence.get(Role.GRAMMAR, "g0")
            assert peer is not None
            assert peer.suspect
            assert scheduler.presence.choose(Role.GRAMMAR) is None
            await anyio.sleep(1.3)
            assert scheduler.news[-1] == ("gone", "g0")
            faults.heal()
            await anyio.sleep(0.5)
            assert scheduler.news[-1] == ("join", "g0")
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_peer_that_answers_probes_lives_although_its_beats_are_lost() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, (grammar,) = await pair(tasks, LocalBroker())
            grammar.presence._left = True  # its beating part is stuck, its bus loop is not
            await anyio.sleep(20)
            assert "gone" not in [what for what, _ in scheduler.news]
            assert scheduler.presence.choose(Role.GRAMMAR) is not None
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_restarted_peer_is_gone_and_then_joins_and_its_former_self_stays_away() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            broker = LocalBroker()
            scheduler, _grammars = await pair(tasks, broker)
            del scheduler.news[:]
            await Actor(broker, Role.GRAMMAR, "g0", [Role.SCHEDULER], incarnation=99).start(tasks)
            await anyio.sleep(2)  # both are beating under one name: the newer one counts
            assert scheduler.news[:2] == [("gone", "g0"), ("join", "g0")]
            assert [what for what, _ in scheduler.news[2:]] in ([], ["ready"])
            peer = scheduler.presence.get(Role.GRAMMAR, "g0")
            assert peer is not None
            assert peer.incarnation == 99
            tasks.cancel_scope.cancel()

    drive(test)


def test_nobody_dies_while_the_bus_is_down_nor_for_three_seconds_after() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            broker = LocalBroker()
            scheduler, (first, second) = await pair(tasks, broker, 2)
            del scheduler.news[:]
            broker.stop()
            await anyio.sleep(60)
            first.kill()
            assert scheduler.news == []
            broker.start()
            await anyio.sleep(2.9)
            assert scheduler.news == []
            assert [peer.instance for peer in scheduler.presence.peers(Role.GRAMMAR)] == ["g0", "g1"]
            await anyio.sleep(2)
            assert scheduler.news == [("gone", "g0")]
            assert second.presence.get(Role.SCHEDULER, "s") is not None
            tasks.cancel_scope.cancel()

    drive(test)


def test_nobody_dies_of_our_own_stall() -> None:
    async def test(clock: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, _grammars = await pair(tasks, LocalBroker(), 2)
            del scheduler.news[:]
            for _ in range(5):
                clock.jump(7)  # everything that should have happened meanwhile happens late, as after a stalled loop
                await anyio.sleep(0.5)
            assert scheduler.news == []
            tasks.cancel_scope.cancel()

    drive(test)


def test_work_goes_to_the_least_busy_in_rotation() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, grammars = await pair(tasks, LocalBroker(), 3)
            chosen = [scheduler.presence.choose(Role.GRAMMAR) for _ in range(6)]
            assert [peer.instance for peer in chosen if peer] == ["g0", "g1", "g2"] * 2
            grammars[0].load = Load(in_flight=5)
            await anyio.sleep(0.6)
            chosen = [scheduler.presence.choose(Role.GRAMMAR) for _ in range(4)]
            assert sorted(peer.instance for peer in chosen if peer) == ["g1", "g1", "g2", "g2"]
            peer = scheduler.presence.get(Role.GRAMMAR, "g1")
            assert peer is not None
            peer.in_flight = 1  # our own calls come before what it says itself
            assert (scheduler.presence.choose(Role.GRAMMAR, exclude=["g2"]) or peer).instance == "g0"
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_call_goes_elsewhere_when_one_is_busy_silent_or_dead() -> None:
    async def test(_: MockClock) -> None:
        for trouble in ("busy", "slow", "dead"):
            async with anyio.create_task_group() as tasks:
                scheduler, (first, second) = await pair(tasks, LocalBroker(), 2, serving=False)
                serve(first, busy=trouble == "busy", delay=30 if trouble == "slow" else 0.01)
                serve(second)
                if trouble == "dead":
                    first.kill()
                start = anyio.current_time()
                verdict, peer = await scheduler.presence.call(Role.GRAMMAR, SPEC, Verdict, timeout=10, busy=is_busy)
                assert (peer.instance, verdict.error) == ("g1", None), trouble
                assert anyio.current_time() - start < (1.1 if trouble == "slow" else 0.1)
                assert [peer.in_flight for peer in scheduler.presence.peers(Role.GRAMMAR)] == [0, 0]
                tasks.cancel_scope.cancel()

    drive(test)


def test_a_single_instance_is_waited_for_and_its_busy_answer_given_back() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, (grammar,) = await pair(tasks, LocalBroker(), serving=False)
            serve(grammar, delay=3, busy=True)
            verdict, _peer = await scheduler.presence.call(Role.GRAMMAR, SPEC, Verdict, timeout=10, busy=is_busy)
            assert is_busy(verdict)
            with pytest.raises(TimedOut):
                await scheduler.presence.call(Role.GRAMMAR, SPEC, Verdict, timeout=2)
            tasks.cancel_scope.cancel()

    drive(test)


def test_without_a_ready_peer_a_call_says_so() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            scheduler, (grammar,) = await pair(tasks, LocalBroker())
            grammar.presence.set_state("draining")
            await anyio.sleep(0.01)
            with pytest.raises(NoPeer):
                await scheduler.presence.call(Role.GRAMMAR, SPEC, Verdict, timeout=2)
            tasks.cancel_scope.cancel()

    drive(test)


def test_goodbye_is_harmless_without_a_bus() -> None:
    async def test(_: MockClock) -> None:
        async with anyio.create_task_group() as tasks:
            broker = LocalBroker()
            scheduler, _grammars = await pair(tasks, broker)
            broker.stop()
            await scheduler.presence.goodbye()
            tasks.cancel_scope.cancel()

    drive(test)


@pytest.mark.parametrize("seed", range(2))
def test_equal_seeds_give_equal_histories(seed: int) -> None:
    histories: list[list[tuple[float, str, str]]] = []

    async def test(_: MockClock) -> None:
        faults = Faults(random.Random(seed), delay_s=(0.0, 0.3), drop=0.3)
        history: list[tuple[float, str, str]] = []
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run)
            broker = LocalBroker(faults=faults)
            for number in range(3):
                scheduler = Actor(broker, Role.SCHEDULER, f"s{number}", [Role.GRAMMAR], incarnation=number)
                scheduler.presence.on_gone(
                    Role.GRAMMAR, lambda peer: history.append((anyio.current_time() - start, "gone", peer.instance))
                )
                scheduler.presence.on_join(
                    Role.GRAMMAR, lambda peer: history.append((anyio.current_time() - start, "join", peer.instance))
                )
                await scheduler.start(tasks)
                await Actor(broker, Role.GRAMMAR, f"g{number}", [Role.SCHEDULER], incarnation=10 + number).start(tasks)
            await anyio.sleep(20)
            tasks.cancel_scope.cancel()
        histories.append([(round(at, 9), what, who) for at, what, who in history])

    for _ in range(2):
        drive(test, seed=seed)
    assert histories[0] == histories[1]
    assert len(histories[0]) >= 9
