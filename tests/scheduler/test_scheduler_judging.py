"""Whoever asks for a verdict waits out what passes: a service that restarts, a broker that is away, an answer that is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest
from trio.testing import MockClock

from phloem_bus.errors import BusError, Disconnected, NoPeer, NoResponders, TimedOut
from phloem_bus.presence import Presence
from phloem_proto.messages import Grammar, GrammarSpec, Verdict
from phloem_proto.subjects import Role
from phloem_scheduler.judging import ABSENT_S, judge

pytestmark = pytest.mark.anyio

GOOD = Verdict(Grammar("digest", "llguidance", "regex", "a+"))
SPEC = GrammarSpec("regex", "a+")
TIMEOUT_S = 30.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Simulated time only: these tests are about tens of seconds."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Town:
    """Stands in for `Presence`: what a call comes to is a function of how long ago the first was made."""

    def __init__(self, outcome: Callable[[float], Verdict | type[BusError]], call_s: float = 0.0) -> None:
        self._outcome = outcome
        self._call_s = call_s
        self._start = anyio.current_time()
        self.calls = 0

    @property
    def elapsed(self) -> float:
        return anyio.current_time() - self._start

    def peers(self, role: Role) -> list[Any]:
        return []

    async def call(self, *_: Any, **__: Any) -> tuple[Verdict, None]:
        self.calls += 1
        outcome = self._outcome(self.elapsed)
        if isinstance(outcome, Verdict):
            return outcome, None
        await anyio.sleep(0 if outcome is NoPeer else self._call_s)
        raise outcome


async def judged(town: Town) -> Verdict:
    return await judge(cast(Presence, town), SPEC, b"r" * 16, TIMEOUT_S)


@pytest.mark.parametrize("trouble", [NoPeer, Disconnected, NoResponders, TimedOut])
async def test_trouble_that_passes_costs_time_and_nothing_else(trouble: type[BusError]) -> None:
    town = Town(lambda elapsed: trouble if elapsed < ABSENT_S / 2 else GOOD, call_s=1.0)
    assert await judged(town) == GOOD
    assert town.elapsed < ABSENT_S / 2 + 2


@pytest.mark.parametrize("before", [Disconnected, NoResponders, TimedOut])
async def test_a_service_that_dies_late_is_waited_for_as_long_as_one_that_was_never_there(
    before: type[BusError],
) -> None:
    def outcome(elapsed: float) -> Verdict | type[BusError]:
        if elapsed < ABSENT_S:
            return before
        return NoPeer if elapsed < 1.8 * ABSENT_S else GOOD

    assert await judged(Town(outcome, call_s=1.0)) == GOOD


async def test_a_service_that_stays_away_is_not_waited_for_until_the_deadline() -> None:
    town = Town(lambda _: NoPeer)
    verdict = await judged(town)
    assert verdict.error is not None
    assert verdict.error.code == "unavailable"
    assert ABSENT_S <= town.elapsed < ABSENT_S + 1


async def test_a_broker_that_stays_away_is_waited_for_until_the_deadline() -> None:
    town = Town(lambda _: Disconnected)
    verdict = await judged(town)
    assert verdict.error is not None
    assert "bus" in verdict.error.message
    assert TIMEOUT_S <= town.elapsed < TIMEOUT_S + 1
