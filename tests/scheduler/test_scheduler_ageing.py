"""Longest prefix first, but nobody waits for ever: a miss under an endless stream of hits, on a clock that only moves with the steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phloem_scheduler.policy import credit
from phloem_scheduler.settings import Settings

from .fake_worker import profile
from .world import World

STEP_S = 0.1


class Stream:
    """Hits on stems of some lengths come faster than the worker takes them, at a fixed rate; everybody draws one token."""

    def __init__(
        self, ageing_s: float, stems: tuple[int, ...] = (512,), per_step: int = 5, slots: int = 4, policy: str = "lpm"
    ) -> None:
        settings = Settings(chunk_tokens=4 * slots + 700, depth=1, policy=policy, ageing_s=ageing_s, max_queued=100_000)
        self.world = World(settings, profile(page_size=16, pages=2000, slots=slots, max_step_tokens=4096))
        self.stems = [[1 + at % 30 for at in range(length)] + [31 + number] * 16 for number, length in enumerate(stems)]
        for stem in self.stems:
            self.world.open(stem, max_tokens=1)
            self.world.finish()
        self.per_step = per_step
        self.arrived: dict[bytes, float] = {}
        self.stem_of: dict[bytes, int] = {}

    def hit(self) -> None:
        number = self.world.opened
        stem = number % len(self.stems)
        # What is cached is the stem, whole pages; the rest is the request's own.
        rid = self.world.open([*self.stems[stem], number % 29, number // 29], max_tokens=1)
        self.arrived[rid], self.stem_of[rid] = self.world.now, stem

    def miss(self, tokens: int = 40, **fields: Any) -> bytes:
        rid = self.world.open([39] * tokens, max_tokens=1, **fields)
        self.arrived[rid] = self.world.now - fields.get("age_ms", 0) / 1000
        return rid

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.per_step):
                self.hit()
            self.world.turn()
            self.world.step()
            self.world.now += STEP_S

    def order(self) -> list[bytes]:
        """Those that got a slot, in that order."""
        return [slot.rid for plan in self.world.sent for slot in plan.opens if slot.rid in self.arrived]

    def before(self, rid: bytes) -> list[bytes]:
        order = self.order()
        return order[: order.index(rid)]


@pytest.mark.parametrize("ageing_s", [0.0, 1.0, 4.0, 9.0])
def test_a_miss_is_overtaken_by_hits_that_came_within_their_credit_and_by_no_other(ageing_s: float) -> None:
    stream = Stream(ageing_s)
    stream.run(40)
    miss = stream.miss()
    stream.run(160)
    came = stream.arrived[miss]
    before = set(stream.before(miss))
    limit = came + credit(528, ageing_s)
    assert limit <= came + ageing_s
    for rid, arrived in stream.arrived.items():
        if rid != miss:
            assert (rid in before) == (arrived < limit or (arrived == limit == came and rid < miss))


def test_the_longer_the_ageing_the_longer_a_miss_waits() -> None:
    overtaken = []
    for ageing_s in (0.0, 0.5, 2.0, 8.0):
        stream = Stream(ageing_s)
        stream.run(30)
        miss = stream.miss()
        stream.run(150)
        before = stream.before(miss)
        overtaken.append(sum(stream.arrived[rid] > stream.arrived[miss] for rid in before))
    assert overtaken[0] == 0
    assert overtaken == sorted(overtaken)
    assert len(set(overtaken)) == 4


def test_without_ageing_to_speak_of_a_miss_waits_as_long_as_hits_come() -> None:
    stream = Stream(86_400.0)
    stream.run(20)
    miss = stream.miss()
    stream.run(100)
    assert miss not in stream.order()
    stream.per_step = 0
    stream.run(60)
    assert stream.order()[-1] == miss


def test_a_longer_match_overtakes_from_further_behind_never_from_further_than_the_ageing() -> None:
    ageing_s = 4.0
    stream = Stream(ageing_s, stems=(64, 512, 2048), per_step=5)
    stream.run(40)
    miss = stream.miss()
    stream.run(140)
    before = stream.before(miss)
    latest = [
        max(stream.arrived[rid] for rid in before if stream.stem_of[rid] == stem) - stream.arrived[miss]
        for stem in range(3)
    ]
    assert latest == sorted(latest)
    for stem, length in enumerate((64, 512, 2048)):
        worth = credit(length + 16, ageing_s)
        assert worth - STEP_S <= latest[stem] < worth < ageing_s


def test_a_request_that_comes_again_is_as_old_as_it_says() -> None:
    stream = Stream(4.0)
    stream.run(40)
    new, old = stream.miss(40), stream.miss(41, age_ms=30_000)
    stream.run(60)
    order = stream.order()
    assert all(stream.arrived[rid] <= stream.arrived[new] for rid in stream.before(old))
    assert order.index(old) < order.index(new)


def test_no_age_lifts_a_request_above_a_higher_priority() -> None:
    stream = Stream(1.0, per_step=0, slots=1)
    low = stream.miss(40, priority=0, age_ms=3_600_000)
    for number in range(5):
        stream.miss(41 + number, priority=1)
    stream.run(12)
    assert stream.order()[-1] == low


@pytest.mark.parametrize("ageing_s", [0.5, 3.0])
@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_overtaken_by_who_came_more_than_the_ageing_later(seed: int, ageing_s: float) -> None:
    """Hits and misses of several priorities, some cancelled, some evicted on the way: the bound holds for every pair of equal priority."""
    rng = random.Random(seed)
    stream = Stream(ageing_s, stems=(64, 512), per_step=0, slots=3)
    world = stream.world
    priority: dict[bytes, int] = {}
    for step in range(160):
        for _ in range(rng.choice((0, 2, 5, 9)) if step < 110 else 0):
            number = world.opened
            level, prompt = rng.choice((0, 0, 1)), [number % 29, number // 29, *[38] * rng.randrange(50)]
            if rng.random() < 0.7:
                prompt = [*rng.choice(stream.stems), *prompt]
            rid = world.open(prompt, max_tokens=1, priority=level)
            stream.arrived[rid], priority[rid] = world.now, level
        if rng.random() < 0.1 and stream.arrived:
            world.cancel(rng.choice(list(stream.arrived)))
        if rng.random() < 0.1 and stream.arrived:
            world.core.workers["w0"].cache.evict(rng.randrange(40))
        world.turn()
        world.step()
        world.now += STEP_S
    order = stream.order()
    assert len(order) > 200
    for level in (0, 1):
        latest = float("-inf")
        for rid in order:
            if priority[rid] == level:
                assert latest <= stream.arrived[rid] + ageing_s + 1e-9
                latest = max(latest, stream.arrived[rid])
