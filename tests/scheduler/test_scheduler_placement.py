"""On which worker a choice goes, and workers that come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Pin, SamplingParams
from phloem_scheduler.core import BadProfile
from phloem_scheduler.pace import Pace
from phloem_scheduler.placement import Guard
from phloem_scheduler.policy import POLICIES
from phloem_scheduler.settings import Settings

from .fake_worker import FakeWorker, expected, profile
from .world import World

STEM = [1 + at % 30 for at in range(64)]


def text(prompt: list[int], max_tokens: int) -> list[int]:
    return expected(prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))[0]


def where(world: World, rid: bytes) -> str:
    """The worker that has a row of this request, or had one when it was last planned."""
    for name, worker in world.core.workers.items():
        if any(row.choice.request.rid == rid for row in worker.rows.values()):
            return name
    raise AssertionError("it has no row")


def several(count: int, warm: dict[str, list[list[int]]] | None = None, **fields: Any) -> World:
    """Idle workers w0, w1, ... with these prompts in their caches."""
    settings = {"chunk_tokens": 64, "depth": 1} | fields.pop("settings", {})
    shape = profile(**{"page_size": 4, "pages": 200, "slots": 40} | fields)
    world = World(Settings(**settings), shape, workers=0)
    for number in range(count):
        name = f"w{number}"
        world.join(name, FakeWorker(shape))
        # While the others are out of sight, it is the one that computes.
        others = {other: world.core.workers.pop(other) for other in list(world.core.workers) if other != name}
        for prompt in (warm or {}).get(name, []):
            world.cancel(world.open(prompt, max_tokens=1))
            world.open(prompt, max_tokens=1)
            world.finish()
        world.core.workers = others | {name: world.core.workers[name]}
    return world


def placed(world: World) -> dict[str, int]:
    names = ("only", "prefix", "load", "balance", "room")
    return {name: count for name in names if (count := getattr(world.core.counters, f"placed_{name}"))}


# --- By match and load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_longest_match_wins_when_loads_are_equal(count: int) -> None:
    warm = {f"w{number}": [STEM[: 16 * (number + 1)]] for number in range(count)}
    for most in range(count):
        world = several(count, warm)
        before = placed(world)
        rid = world.open([*STEM[: 16 * (most + 1)], 39], max_tokens=4)
        world.turn()
        # The shortest that has all of it would do, but those with more have it too: the first of them by name.
        assert where(world, rid) == f"w{most}"
        assert placed(world).get("prefix", 0) - before.get("prefix", 0) == (most > 0)


def test_each_goes_where_its_own_prefix_is() -> None:
    stems = {f"w{number}": [30 + number] * 40 for number in range(4)}
    world = several(4, {name: [stem] for name, stem in stems.items()})
    rids = {}
    for turn in range(3):
        for name, stem in stems.items():
            rids[world.open([*stem, turn], max_tokens=1)] = name
    computed = {name: worker.computed for name, worker in world.workers.items()}
    world.turn()
    for rid, name in rids.items():
        assert where(world, rid) == name
    world.finish()
    assert {name: worker.computed - computed[name] for name, worker in world.workers.items()} == dict.fromkeys(stems, 3)


def test_without_any_match_work_is_spread_evenly() -> None:
    world = several(3)
    for number in range(12):
        world.open([1 + number] * 10, max_tokens=20, ignore_eos=True)
    world.turn()
    assert [len(worker.rows) for worker in world.core.workers.values()] == [4, 4, 4]
    assert placed(world) == {"load": 12}


@pytest.mark.parametrize(("busy", "goes_to"), [(0, "w0"), (1, "w0"), (3, "w1"), (8, "w1")])
def test_a_match_weighs_as_much_as_the_rows_it_has_to_share_the_worker_with(busy: int, goes_to: str) -> None:
    """64 cached tokens are worth two rows: with more of them there, an idle worker is done sooner."""
    world = several(1, {"w0": [STEM]})
    for number in range(busy):
        world.open([*STEM, 31 + number], max_tokens=60, ignore_eos=True)
    world.steps(3)
    world.join("w1", FakeWorker(profile(page_size=4, pages=200)))
    rid = world.open([*STEM, 30], max_tokens=4, ignore_eos=True)
    world.turn()
    assert where(world, rid) == goes_to


def test_prompts_that_are_still_to_be_computed_count_as_load() -> None:
    world = several(2, settings={"chunk_tokens": 16})
    long = world.open([31] * 400, max_tokens=1)
    world.turn()
    others = [world.open([32 + number] * 8, max_tokens=4, ignore_eos=True) for number in range(2)]
    world.turn()
    busy = where(world, long)
    assert all(where(world, rid) != busy for rid in others)


def test_a_long_prompt_that_was_just_placed_counts_for_the_next_choice() -> None:
    world = several(1, settings={"chunk_tokens": 16})
    for number in range(2):
        world.open([1 + number] * 4, max_tokens=50, ignore_eos=True)
    world.steps(3)
    world.join("w1", FakeWorker(profile(page_size=4, pages=200)))
    long, short = world.open([31] * 400, max_tokens=1), world.open([32] * 8, max_tokens=4, ignore_eos=True)
    world.turn()
    assert (where(world, long), where(world, short)) == ("w1", "w0")


def test_what_a_worker_is_computing_is_waited_for_there_although_a_busy_one_has_it() -> None:
    stem = [1 + at % 30 for at in range(64)]
    world = several(1, {"w0": [stem]}, settings={"chunk_tokens": 16})
    for number in range(10):
        world.open([*stem, 31, number], max_tokens=60, ignore_eos=True)
    world.steps(8)
    assert len(world.core.workers["w0"].rows) == 10
    world.join("w1", FakeWorker(profile(page_size=4, pages=200)))
    first = world.open([*stem, 32], max_tokens=1)
    world.turn()
    assert where(world, first) == "w1"
    second = world.open([*stem, 33], max_tokens=1)
    world.finish()
    assert world.workers["w1"].computed == 64 + 2
    assert [world.outputs[rid, 0] for rid in (first, second)] == [text([*stem, tail], 1) for tail in (32, 33)]


def test_only_one_worker_is_no_choice() -> None:
    world = several(1)
    world.open(STEM, max_tokens=1)
    world.finish()
    assert placed(world) == {"only": 1}


def test_a_worker_of_which_nothing_is_known_yet_gets_its_share() -> None:
    """w0 has shown that it needs a hundredth of a millisecond for a token; w1 has just come."""
    world = World(Settings(chunk_tokens=64, depth=1), profile(page_size=4, pages=200), forward_ms=0.01)
    for number in range(4):
        world.open([1 + number] * 30, max_tokens=8, ignore_eos=True)
    world.finish()
    world.join("w1", FakeWorker(profile(page_size=4, pages=200), forward_ms=0.01))
    rids = [world.open([10 + number] * 30, max_tokens=8, ignore_eos=True) for number in range(4)]
    world.turn()
    world.turn()
    assert sorted(where(world, rid) for rid in rids) == ["w0", "w0", "w1", "w1"]


def test_a_faster_worker_gets_more() -> None:
    world = World(Settings(chunk_tokens=2000, depth=1), profile(page_size=4, pages=400, slots=40), forward_ms=1.0)
    world.join("w1", FakeWorker(profile(page_size=4, pages=400, slots=40), forward_ms=0.25))
    for number in range(8):
        world.open([1 + number] * 30, max_tokens=4, ignore_eos=True)
    world.finish()
    for number in range(20):
        world.open([10 + number] * 10, max_tokens=4, ignore_eos=True)
    world.turn()
    rows = [len(worker.rows) for worker in world.core.workers.values()]
    assert sum(rows) == 20
    assert 3 * rows[0] <= rows[1] <= 5 * rows[0]


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_a_worker_that_has_only_decoded_for_long_is_not_taken_for_slow(rows: int) -> None:
    """A step takes 8 ms whether it decodes one row or forty, and 0.05 ms for each prompt token: that is still known 3000 steps later."""
    pace = Pace(1000)
    for tokens in (300, 1, 200, 2):
        pace.measured(tokens, 8 + 0.05 * tokens)
    rng = random.Random(1)
    for _ in range(3000):
        drawn = max(1, rows + rng.randrange(-1, 2))
        pace.measured(drawn, 8 + 0.05 * drawn + rng.uniform(-0.5, 0.5))
    base, each = pace.line()
    assert each == pytest.approx(0.05, rel=0.1)
    assert base == pytest.approx(8, rel=0.1)


def test_a_worker_that_has_become_faster_is_believed() -> None:
    pace = Pace(1000)
    for tokens in (300, 1, 200, 2):
        pace.measured(tokens, 8 + 0.5 * tokens)
    for _ in range(300):
        pace.measured(100, 10)
    assert pace.line()[1] == pytest.approx(0.1, rel=0.01)
    for tokens in (300, 1) * 200:
        pace.measured(tokens, 1 + 0.01 * tokens)
    assert pace.line() == pytest.approx((1, 0.01), rel=0.05)


# --- The guard ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "least", "over"),
    [(15, 0, False), (16, 0, True), (47, 32, False), (48, 32, False), (49, 32, True), (31, 16, False), (32, 16, True)],
)
def test_too_many_rows_are_more_than_the_ratio_and_the_difference(rows: int, least: int, over: bool) -> None:
    assert Guard(ratio=1.5, rows=16).over(rows, least) is over


def test_a_popular_prefix_does_not_gather_all_traffic_in_one_place() -> None:
    """What is cached would outweigh any load here; the guard sends the others elsewhere, where they find it too from then on."""
    stem = [1 + at % 30 for at in range(600)]
    world = several(3, {"w0": [stem]}, pages=800, settings={"chunk_tokens": 400, "balance_rows": 6})
    rids = [world.open([*stem, number], max_tokens=40, ignore_eos=True) for number in range(30)]
    seen = []
    for _ in range(30):
        world.turn()
        for name in world.workers:
            world.step(name)
        seen.append([len(worker.rows) for worker in world.core.workers.values()])
    # In the first plan some wait for w1 and w2, which compute the prompt.
    assert all(max(rows) - min(rows) <= 6 for rows in seen[1:])
    assert sum(seen[-1]) == 30
    assert placed(world)["balance"] >= 2
    world.finish()
    assert all(world.outputs[rid, 0] == text([*stem, number], 40) for number, rid in enumerate(rids))


# --- Room ---------------------------------------------------------------------------------------------------------------


def test_who_finds_no_room_at_the_best_worker_goes_to_another() -> None:
    stem = [1 + at % 30 for at in range(300)]
    world = several(2, {"w0": [stem]}, slots=2)
    rids = [world.open([*stem, 31 + number], max_tokens=30, ignore_eos=True) for number in range(3)]
    world.turn()
    assert [where(world, rid) for rid in rids] == ["w0", "w0", "w1"]
    assert placed(world)["room"] == 1


def test_what_is_left_of_a_plans_budget_lets_nobody_go_ahead() -> None:
    """Three tokens are left: too few for a page of the second, and enough for the third, which has to wait its turn all the same."""
    world = several(1, settings={"chunk_tokens": 16})
    first, second, third = (world.open(prompt, max_tokens=1) for prompt in ([1] * 13, [2] * 8, [3] * 2))
    world.finish()
    assert [[slot.rid for slot in plan.opens] for plan in world.sent if plan.opens] == [[first], [second, third]]


def idle_with_somebody_waiting(world: World) -> bool:
    """Whether a worker has nothing to do although somebody can be picked."""
    choice = world.core.queue.first()
    return choice is not None and any(worker.idle for worker in world.core.workers.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_no_worker_idles_while_somebody_waits(seed: int, policy: str) -> None:
    """Prompts that share nothing: whoever waits could go anywhere, so as long as anybody does, every worker has work."""
    rng = random.Random(seed)
    shape = profile(page_size=4, pages=rng.choice([40, 100]), slots=rng.choice([1, 2, 6]))
    settings = Settings(
        chunk_tokens=rng.choice([8, 64]), depth=rng.choice([1, 2]), policy=policy, max_queued=1000, balance_rows=3
    )
    world = World(settings, shape, workers=rng.choice([2, 3, 4]))
    for number in range(60):
        world.open([number % 39, number // 39, 3] * rng.randrange(1, 8), max_tokens=rng.choice([1, 6]), ignore_eos=True)
        if rng.random() < 0.5:
            world.turn()
            assert not idle_with_somebody_waiting(world)
            for name in world.workers:
                if rng.random() < 0.6:
                    world.step(name)
    for _ in range(3000):
        world.turn()
        assert not idle_with_somebody_waiting(world)
        if not sum(world.step(name) for name in world.workers if rng.random() < 0.6) and world.core.idle:
            break
    assert world.core.idle
    assert len(world.ends) == 60


@pytest.mark.parametrize("seed", range(10))
def test_who_waits_for_a_worker_with_more_of_its_prompt_gains_by_it(seed: int) -> None:
    """A worker may stand idle beside somebody who waits only if another one saves that one tokens, and only until that one's next plan."""
    rng = random.Random(seed)
    shape = profile(page_size=4, pages=200, slots=rng.choice([2, 6]))
    world = World(Settings(chunk_tokens=32, depth=rng.choice([1, 2]), max_queued=1000), shape, workers=2)
    stems = [[30 + number] * rng.choice([8, 40, 100]) for number in range(3)]
    waited: dict[bytes, int] = {}
    for number in range(80):
        world.open([*rng.choice(stems), number % 30, number // 30], max_tokens=rng.choice([1, 6]), ignore_eos=True)
        world.turn()
        choice = world.core.queue.first()
        idle = [worker for worker in world.core.workers.values() if worker.idle]
        if choice is not None and idle:
            assert choice.node is not None
            cached = {w: w.cache.cached(choice.node).depth for w in world.core.workers.values()}
            assert max(cached.values()) > max(cached[worker] for worker in idle)
            waited[choice.request.rid] = waited.get(choice.request.rid, 0) + 1
            assert waited[choice.request.rid] <= 3
        for name in world.workers:
            if rng.random() < 0.7:
                world.step(name)
    world.finish()
    assert len(world.ends) == 80


def test_many_who_wait_for_the_worker_with_their_prefix_do_not_all_wait_for_it() -> None:
    """All forty would be done soonest at w0, which is in the midst of a step, if they were alone; together they keep w1 busy too."""
    stem = [1 + at % 30 for at in range(100)]
    world = several(2, {"w0": [stem]})
    world.open([*stem, 31], max_tokens=30, ignore_eos=True)
    world.turn()
    assert [len(worker.rows) for worker in world.core.workers.values()] == [1, 0]
    for number in range(40):
        world.open([*stem, number % 30, number // 30], max_tokens=30, ignore_eos=True)
    world.turn()
    assert [len(worker.rows) > 0 for worker in world.core.workers.values()] == [True, True]


@pytest.mark.parametrize("scarce", ["slots", "pages"])
def test_only_as_many_wait_for_a_worker_as_it_will_have_room_for(scarce: str) -> None:
    """w0 has all of a long prompt and room for one more; the others take w1 at once, although that has nothing of it."""
    stem = [1 + at % 30 for at in range(700)]
    world = several(
        2,
        {"w0": [stem]},
        slots=4 if scarce == "slots" else 100,
        pages=1000 if scarce == "slots" else 220,
        settings={"reserve": 1.0},
    )
    for number in range(3):
        world.open([*stem, 31, number], max_tokens=30, ignore_eos=True)
    world.turn()
    assert [len(worker.rows) for worker in world.core.workers.values()] == [3, 0]
    rids = [world.open([*stem, number, number], max_tokens=30, ignore_eos=True) for number in range(9)]
    world.turn()
    assert len(world.core.workers["w1"].rows) == 1  # it computes the prompt now, for all the others
    world.finish()
    assert all(world.outputs[rid, 0] == text([*stem, number, number], 30) for number, rid in enumerate(rids))


# --- Workers of different size ------------------------------------------------------------------------------------------


def test_a_request_goes_to_a_worker_that_can_hold_all_of_its_output() -> None:
    """The small one is idle, but would have to cut the text short."""
    world = several(1, pages=10)
    world.join("w1", FakeWorker(profile(page_size=4, pages=50)))
    small = [world.open([1 + number] * 8, max_tokens=30, ignore_eos=True) for number in range(6)]
    large = [world.open([10 + number] * 8, max_tokens=60, ignore_eos=True) for number in range(6)]
    world.finish()
    assert all(len(world.outputs[rid, 0]) == 30 for rid in small)
    assert all(len(world.outputs[rid, 0]) == 60 for rid in large)
    assert world.core.workers["w0"].traffic.choices > 0


def test_who_waits_for_the_only_worker_that_can_hold_it_keeps_no_other_worker_idle() -> None:
    """And on that worker nobody goes ahead of it."""
    world = several(1, pages=10)
    world.join("w1", FakeWorker(profile(page_size=4, pages=50)))
    large = [world.open([1 + number] * 120, max_tokens=30, ignore_eos=True) for number in range(2)]
    small = [world.open([10 + number] * 8, max_tokens=8, ignore_eos=True) for number in range(6)]
    world.turn()
    assert where(world, large[0]) == "w1"
    assert [row.choice.request.rid for row in world.core.workers["w0"].rows.values()] == small[:2]
    world.finish()
    assert all(len(world.outputs[rid, 0]) == 30 for rid in large)
    assert all(len(world.outputs[rid, 0]) == 8 for rid in small)


def test_what_a_client_was_told_stays_when_only_a_smaller_worker_is_left() -> None:
    """It ends there by length, with all the tokens it has: more than the small worker could hold."""
    world = several(1, pages=50)
    rid = world.open([1] * 8, max_tokens=100, ignore_eos=True)
    world.steps(60)
    world.turn()
    told = list(world.outputs[rid, 0])
    assert len(told) > 40
    world.core.worker_gone("w0")
    world.plans["w0"].clear()
    world.join("w1", FakeWorker(profile(page_size=4, pages=10)))
    world.finish()
    assert world.outputs[rid, 0] == told
    assert world.ends[rid, 0].reason == "length"
    assert len(world.core.ledger.requests[rid].choices[0].output) == len(told)


def test_a_replayed_request_brings_no_more_than_it_asked_for() -> None:
    """A gateway that holds more than max_tokens (it lowered it) gets an end at max_tokens."""
    world = several(1)
    whole = text([1, 2, 3], 9)
    first = world.open([1, 2, 3], max_tokens=9, ignore_eos=True)
    world.finish()
    assert world.outputs[first, 0] == whole
    world.outputs[b"again", 0] = list(whole)
    again = world.open([1, 2, 3], rid=b"again", max_tokens=5, ignore_eos=True, have=(world.hold(first),))
    world.finish()
    assert len(world.core.ledger.requests[again].choices[0].output) == 5


def pin(world: World, name: str, prompt: list[int]) -> None:
    """A lease on what is cached of prompt."""
    world.core.pin(Pin("somebody", name, "g1", 60_000, pack_ids(prompt)), name, world.now)
    world.turn()
    assert world.replies[name].error is None
    assert world.replies[name].info.tokens > 0


def test_a_lease_yields_to_a_request_that_could_not_run_at_all_and_no_other_does() -> None:
    world = several(1, {"w0": [[31] * 40, [32] * 40]}, pages=44, settings={"pin_share": 0.5})
    pin(world, "first", [31] * 40)
    pin(world, "second", [32] * 40)
    rid = world.open([1 + at % 30 for at in range(120)], max_tokens=4, ignore_eos=True)
    world.finish()
    assert len(world.outputs[rid, 0]) == 4
    assert (world.core.pins.yielded, len(world.core.pins)) == (1, 1)


def test_a_lease_on_a_worker_that_is_too_small_for_a_request_does_not_yield_to_it() -> None:
    """The large worker is full for a while; that the small one has nothing to do is no reason to end its leases."""
    world = several(1, {"w0": [[31] * 40]}, pages=20, settings={"pin_share": 0.9})
    pin(world, "kept", [31] * 40)
    world.join("w1", FakeWorker(profile(page_size=4, pages=60)))
    first, second = (world.open([1 + number] * 150, max_tokens=30, ignore_eos=True) for number in (1, 2))
    world.turn()
    assert where(world, first) == "w1"
    world.finish()
    assert [len(world.outputs[rid, 0]) for rid in (first, second)] == [30, 30]
    assert (world.core.pins.yielded, len(world.core.pins)) == (0, 1)


# --- Workers that come and go -------------------------------------------------------------------------------------------


class Fleet:
    """Requests without end on workers that come and go at any time."""

    def __init__(self, seed: int, policy: str) -> None:
        self.rng = rng = random.Random(seed)
        self.shape = profile(page_size=rng.choice([1, 4]), pages=120, slots=rng.choice([1, 4]))
        settings = Settings(
            chunk_tokens=rng.choice([8, 64]),
            depth=rng.choice([1, 2, 3]),
            policy=policy,
            max_queued=10_000,
            worker_wait_s=1e9,
            preempt_above=1,
        )
        self.world = World(settings, self.shape, workers=0, late=0.0)
        self.wanted: dict[bytes, list[int]] = {}
        self.came = 0

    def come(self) -> None:
        if len(self.world.core.workers) < 4:
            self.came += 1
            self.world.join(f"w{self.came}", FakeWorker(self.shape, seed=self.came, late=0.1))

    def go(self) -> None:
        if self.world.core.workers:
            name = self.rng.choice(list(self.world.core.workers))
            self.world.core.worker_gone(name)
            self.world.core.check()
            del self.world.plans[name], self.world.workers[name]

    def open(self) -> None:
        rng = self.rng
        prompt = [1 + rng.randrange(2)] * rng.randrange(1, 30) + [rng.randrange(3, 30)]
        most = rng.choice([1, 4, 12])
        rid = self.world.open(prompt, max_tokens=most, ignore_eos=True, priority=rng.choice([0, 0, 0, 5]))
        self.world.turn()
        error = self.world.replies[rid, 1].error
        assert (error is None) == bool(self.world.core.workers), "refused for want of a worker, and only then"
        if error is None:
            self.wanted[rid] = text(prompt, most)
        else:
            assert error.code == "unavailable"

    def run(self, steps: int) -> None:
        for _ in range(steps):
            move = self.rng.choices((self.come, self.go, self.open, lambda: None), (2, 2, 12, 20))[0]
            move()
            self.world.now += 0.1
            self.world.turn()
            for name in list(self.world.workers):
                if self.rng.random() < 0.8:
                    self.world.step(name)
        while not self.world.core.workers:
            self.come()
        self.world.finish()
        for rid, output in self.wanted.items():
            assert self.world.outputs[rid, 0] == output
            assert self.world.ends[rid, 0].reason == "length"
            self.world.cancel(rid)
        self.world.finish()
        self.world.assert_empty()
        for _ in range(1000):
            self.world.turn()  # what gone workers had cached leaves the tree
        there = list(self.world.core.workers.values())
        assert {shelf for node in self.world.core.tree.nodes() for shelf in node.copies} <= {
            w.cache.shelf for w in there
        }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_workers_come_and_go_at_any_time_and_no_text_changes(seed: int, policy: str) -> None:
    Fleet(seed, policy).run(150)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(100, 130))
def test_workers_come_and_go_at_any_time_and_no_text_changes_at_length(seed: int, policy: str) -> None:
    Fleet(seed, policy).run(1500)


def test_a_worker_with_pages_of_another_size_than_the_others_is_refused_and_harms_nobody() -> None:
    world = several(1)
    rid = world.open(STEM, max_tokens=20, ignore_eos=True)
    world.steps(3)
    with pytest.raises(BadProfile, match="its pages have 8 tokens, those of the other workers 4"):
        world.core.worker_joined("w1", profile(page_size=8))
    assert list(world.core.workers) == ["w0"]
    world.finish()
    assert world.outputs[rid, 0] == text(STEM, 20)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 2, 8, 16, 64])
def test_a_new_first_worker_may_have_pages_of_another_size(page_size: int, policy: str) -> None:
    """Those who wait, also those that had run, hang on a new tree and go on in their order."""
    world = several(1, slots=2, settings={"policy": policy})
    prompts = {}
    for tail in range(30, 36):
        prompts[world.open([*STEM, tail], max_tokens=6, ignore_eos=True, priority=tail % 2)] = [*STEM, tail]
    world.steps(5)
    world.core.worker_gone("w0")
    world.plans["w0"].clear()
    world.turn()
    world.join("w1", FakeWorker(profile(page_size=page_size, pages=1024 // page_size)))
    assert world.core.tree.page_size == page_size
    world.core.check()
    world.finish()
    for rid, prompt in prompts.items():
        assert world.outputs[rid, 0] == text(prompt, 6)
        world.cancel(rid)
    world.finish()
    world.assert_empty()
    assert world.workers["w1"].computed <= 65 + 5 * (page_size + 1) + 6 * 6 + 12


def test_cancelled_while_no_worker_is_there_it_leaves_no_node_on_either_tree() -> None:
    world = several(1, slots=1)
    rids = [world.open([*STEM, tail], max_tokens=6, ignore_eos=True) for tail in (30, 31)]
    world.steps(3)
    world.core.worker_gone("w0")
    world.plans["w0"].clear()
    world.turn()
    world.cancel(rids[0])
    world.join("w1", FakeWorker(profile(page_size=16)))
    world.cancel(rids[1])
    world.turn()
    assert (world.core.tree.size, world.core.tree.roots) == (0, {})
    world.assert_empty()
