"""Rows of low priority give way to a waiting choice of much higher priority, and only when that helps."""

from __future__ import annotations

import random

import pytest

from phloem_proto.messages import SamplingParams
from phloem_scheduler.settings import Settings

from .fake_worker import FakeWorker, expected, profile
from .world import World


def text(prompt: list[int], max_tokens: int) -> list[int]:
    return expected(prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))[0]


def running(world: World, name: str = "w0") -> list[bytes]:
    return sorted(row.choice.request.rid for row in world.core.workers[name].rows.values())


def crowded(slots: int, **settings: object) -> World:
    """Pages for everybody, but few slots."""
    return World(
        Settings(chunk_tokens=64, **settings),  # type: ignore[arg-type]
        profile(page_size=4, pages=400, slots=slots, max_step_tokens=128),
    )


def tight(pages: int, **settings: object) -> World:
    """Slots for everybody, but few pages; nothing is set aside for rows that run, unless settings say so."""
    return World(
        Settings(**{"chunk_tokens": 256, "reserve": 0.0, "depth": 1} | settings),  # type: ignore[arg-type]
        profile(page_size=4, pages=pages, slots=16),
    )


# --- Who gives way to whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("difference", "gives_way"), [(0, False), (9, False), (10, False), (11, True), (500, True)])
@pytest.mark.parametrize("base", [-20, 0, 7])
def test_a_row_gives_way_only_to_who_is_more_than_the_threshold_above_it(
    base: int, difference: int, gives_way: bool
) -> None:
    world = crowded(slots=1, preempt_above=10)
    low = world.open([1, 2, 3], max_tokens=20, ignore_eos=True, priority=base)
    world.steps(4)
    high = world.open([4, 5, 6], max_tokens=3, ignore_eos=True, priority=base + difference)
    world.turn()
    assert running(world) == ([high] if gives_way else [low])
    assert world.core.counters.preempted == world.core.counters.retractions == gives_way
    world.finish()
    assert world.outputs[low, 0] == text([1, 2, 3], 20)
    assert world.outputs[high, 0] == text([4, 5, 6], 3)
    ended = [frame.rid for frame in world.frames if frame.end is not None]
    assert ended == ([high, low] if gives_way else [low, high])


def test_with_preemption_off_nobody_ever_gives_way() -> None:
    world = crowded(slots=1, preempt_above=None)
    low = world.open([1, 2, 3], max_tokens=20, ignore_eos=True)
    world.steps(4)
    world.open([4, 5, 6], max_tokens=3, priority=1_000_000)
    world.turn()
    assert running(world) == [low]
    world.finish()
    assert (world.core.counters.preempted, world.core.counters.retractions) == (0, 0)


def test_the_lowest_priority_goes_first_and_of_equals_who_came_last() -> None:
    world = crowded(slots=4, preempt_above=10)
    prompts = {
        world.open([number] * 5, max_tokens=30, ignore_eos=True, priority=priority, age_ms=age): [number] * 5
        for number, priority, age in ((1, 5, 0), (2, 1, 9000), (3, 1, 1000), (4, 2, 0))
    }
    first, second, third, fourth = prompts
    world.steps(3)
    order: list[bytes] = []
    for number in range(4):
        before = running(world)
        high = world.open([9, number], max_tokens=90, ignore_eos=True, priority=100)
        world.turn()
        gone = set(before) - set(running(world))
        assert len(gone) == 1
        assert high in running(world)
        order += gone
        world.step()
    assert order == [third, second, fourth, first]
    world.finish()
    for rid, prompt in prompts.items():
        assert world.outputs[rid, 0] == text(prompt, 30)


def test_a_row_whose_last_draw_is_planned_is_left_to_finish() -> None:
    world = crowded(slots=1, preempt_above=10)
    low = world.open([1, 2, 3], max_tokens=2, ignore_eos=True)
    world.turn()  # both draws are planned
    high = world.open([4, 5, 6], max_tokens=2, ignore_eos=True, priority=99)
    world.turn()
    assert running(world) == [low]
    world.finish()
    assert world.core.counters.preempted == 0
    assert [frame.rid for frame in world.frames if frame.end is not None] == [low, high]


def test_who_gives_way_keeps_its_place_and_passes_a_full_queue() -> None:
    world = crowded(slots=1, preempt_above=10, max_queued=3)
    low = world.open([1, 2, 3], max_tokens=9, ignore_eos=True)
    world.steps(3)
    others = [world.open([4 + number] * 3, max_tokens=1) for number in range(2)]
    world.turn()
    high = world.open([9] * 3, max_tokens=1, priority=50)
    world.finish()
    done = [frame.rid for frame in world.frames if frame.end is not None]
    assert done[0] == high
    # One takes the slot while results of the victim are due; then it is the first again.
    assert done[1:3] in ([low, others[0]], [others[0], low])
    assert world.outputs[low, 0] == text([1, 2, 3], 9)


# --- How many -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [(8, 0), (38, 0), (39, 1), (78, 1), (79, 2), (118, 2), (119, 3), (163, 3)],
)
def test_exactly_as_many_go_as_are_needed(prompt: int, wanted: int) -> None:
    """Three rows hold 10 pages each, 11 are free. A prompt of n tokens with one to draw needs n + 1 and a page for what is rounded."""
    world = tight(pages=41, preempt_above=10)
    lows = {world.open([number] * 39, max_tokens=10, ignore_eos=True): [number] * 39 for number in (1, 2, 3)}
    world.turn()
    cache = world.core.workers["w0"].cache
    assert (len(running(world)), cache.pool.free) == (3, 11)
    world.step()
    high = world.open([9] * prompt, max_tokens=1, priority=11)
    world.turn()
    assert world.core.counters.preempted == wanted
    assert high in running(world)
    world.finish()
    assert world.outputs[high, 0] == text([9] * prompt, 1)
    for rid, low in lows.items():
        assert world.outputs[rid, 0] == text(low, 10)


def test_nobody_goes_if_all_that_may_go_are_not_enough() -> None:
    world = tight(pages=40, preempt_above=10)
    equal = world.open([1] * 79, max_tokens=40, ignore_eos=True, priority=11)
    low = world.open([2] * 39, max_tokens=20, ignore_eos=True)
    world.steps(2)
    high = world.open([9] * 90, max_tokens=1, priority=11)
    world.turn()
    assert running(world) == sorted([equal, low])
    world.finish()
    assert world.core.counters.preempted == 0
    assert world.outputs[high, 0] == text([9] * 90, 1)


def test_nobody_goes_for_who_fits_anyway() -> None:
    world = tight(pages=60, preempt_above=10)
    low = world.open([2] * 39, max_tokens=20, ignore_eos=True)
    world.steps(2)
    high = world.open([9] * 90, max_tokens=1, priority=11)
    world.turn()
    assert running(world) == sorted([low, high])
    world.finish()
    assert world.core.counters.preempted == 0


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_goes_if_another_worker_has_room(busy: bool) -> None:
    """Even if that worker's plans are all under way, so that it can take the choice only in its next one."""
    world = World(Settings(chunk_tokens=64, preempt_above=10), profile(page_size=4, pages=100, slots=2), workers=2)
    lows = [world.open([number] * 5, max_tokens=60, ignore_eos=True) for number in (1, 2, 3)]
    world.turn()
    for _ in range(2):
        world.step("w0")
        world.step("w1")
        world.turn()
    full = max(world.workers, key=lambda name: len(running(world, name)))
    spare = next(name for name in world.workers if name != full)
    assert (len(running(world, full)), len(running(world, spare))) == (2, 1)
    high = world.open([9] * 5, max_tokens=2, ignore_eos=True, priority=11)
    world.step(full)
    if not busy:
        world.step(spare)
    world.turn()
    world.step(spare)
    world.turn()
    assert high in running(world, spare)
    world.finish()
    assert world.core.counters.preempted == 0
    assert all(len(world.outputs[rid, 0]) == 60 for rid in lows)


def test_a_prefix_that_the_newcomer_shares_with_a_victim_is_no_room_for_it() -> None:
    """Locked by both, it would stay: the victim gives 4 pages of its own, and the newcomer lacks more."""
    world = tight(pages=40, preempt_above=10)
    shared = [1 + at % 30 for at in range(100)]
    low = world.open([*shared, *[31] * 14], max_tokens=20, ignore_eos=True)
    equal = world.open([33] * 16, max_tokens=20, ignore_eos=True, priority=11)
    world.steps(2)
    high = world.open([*shared, *[32] * 40], max_tokens=1, priority=11)
    world.turn()
    assert running(world) == sorted([low, equal])
    world.finish()
    assert world.core.counters.preempted == 0
    assert world.outputs[high, 0] == text([*shared, *[32] * 40], 1)


def test_what_several_victims_share_is_free_once_all_of_them_go() -> None:
    """Four choices of one long prompt hold little each; together they hold it."""
    world = tight(pages=40, preempt_above=10)
    prompt = [1 + at % 30 for at in range(112)]
    low = world.open(prompt, n=4, max_tokens=12, ignore_eos=True)
    other = world.open([33] * 8, max_tokens=12, ignore_eos=True, priority=11)
    world.steps(2)
    assert len(running(world)) == 5
    high = world.open([9] * 100, max_tokens=1, priority=11)
    world.turn()
    assert running(world) == sorted([other, high])
    assert world.core.counters.preempted == 4
    world.finish()
    assert all(world.outputs[low, child] == text(prompt, 12) for child in range(4))


def test_what_is_set_aside_for_a_victim_is_room_once_it_goes() -> None:
    """It holds two pages only, but a hundred tokens are kept free for it."""
    world = tight(pages=40, reserve=1.0, preempt_above=10)
    equal = world.open([2] * 4, max_tokens=9, ignore_eos=True, priority=11)
    low = world.open([1] * 7, max_tokens=100, ignore_eos=True)
    world.steps(1)
    assert running(world) == sorted([equal, low])
    high = world.open([9] * 60, max_tokens=1, priority=11)
    world.turn()
    assert running(world) == sorted([equal, high])
    world.finish()
    assert world.outputs[low, 0] == text([1] * 7, 100)


def test_who_would_run_alone_needs_no_room_for_its_output() -> None:
    """Its output may become longer than the pool, as with anybody who sets no limit; that keeps nobody from running alone."""
    world = tight(pages=40, preempt_above=10)
    low = world.open([1] * 79, max_tokens=70, ignore_eos=True)
    world.steps(2)
    high = world.open([9] * 100, max_tokens=4000, ignore_eos=True, priority=11)
    world.turn()
    assert running(world) == [high]
    world.finish()
    assert world.outputs[high, 0] == text([9] * 100, 60)
    assert world.outputs[low, 0] == text([1] * 79, 70)


# --- Resuming -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", range(12))
def test_preempted_at_any_chunk_or_draw_it_resumes_to_the_same_text(at: int, depth: int) -> None:
    world = World(
        Settings(chunk_tokens=16, preempt_above=10, depth=depth), profile(page_size=4, pages=100, slots=1), late=0.1
    )
    prompt = [1 + place % 30 for place in range(70)]
    low = world.open(prompt, max_tokens=12, ignore_eos=True)
    world.steps(at)
    high = world.open([35] * 20, max_tokens=3, ignore_eos=True, priority=11)
    world.finish()
    assert world.outputs[low, 0] == text(prompt, 12)
    assert world.outputs[high, 0] == text([35] * 20, 3)
    for rid in (low, high):
        world.cancel(rid)
    world.finish()
    world.assert_empty()


@pytest.mark.parametrize("pause", range(4))
@pytest.mark.parametrize("at", range(1, 8))
def test_preempted_and_then_cancelled_it_leaves_nothing(at: int, pause: int) -> None:
    world = World(Settings(chunk_tokens=16, preempt_above=10), profile(page_size=4, pages=100, slots=2))
    lows = [world.open([number] * 50, max_tokens=12, ignore_eos=True) for number in (1, 2)]
    world.steps(at)
    highs = [world.open([35 + number] * 20, max_tokens=6, ignore_eos=True, priority=11) for number in (0, 1)]
    world.steps(pause)
    for rid in lows:
        world.cancel(rid)
    world.finish()
    assert [world.outputs[rid, 0] for rid in highs] == [text([35 + number] * 20, 6) for number in (0, 1)]
    for rid in highs:
        world.cancel(rid)
    world.finish()
    world.assert_empty()


# --- Random mixes -------------------------------------------------------------------------------------------------------


class Crowd:
    """Rows of all priorities with common prefixes on too few pages, the same for the same seed, and a newcomer of high priority."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.world = tight(pages=rng.choice([30, 60, 90]), reserve=rng.choice([0.0, 0.7]), preempt_above=10)
        stem = [1 + at % 30 for at in range(80)]
        self.rids: list[bytes] = []
        for _ in range(rng.randrange(1, 8)):
            prompt = [*stem[: rng.randrange(70)], rng.randrange(30, 34), *[35] * rng.randrange(20)]
            n, most = rng.choice([1, 1, 2]), rng.choice([5, 30, 500])
            self.rids.append(
                self.world.open(prompt, n=n, max_tokens=most, ignore_eos=True, priority=rng.choice([0, 0, 3, 15]))
            )
        self.world.steps(rng.randrange(1, 9))
        prompt = [*stem[: rng.choice([0, 0, 40, 80])], *[36] * rng.randrange(1, 60)]
        self.high = self.world.open(prompt, max_tokens=rng.choice([1, 20, 5000]), ignore_eos=True, priority=20)
        self.worker = self.world.core.workers["w0"]

    def first(self) -> bool:
        choice = self.world.core.queue.first()
        return choice is not None and choice.request.rid == self.high

    def has_room(self) -> bool:
        """Whether the newcomer has room at once."""
        choice = self.world.core.ledger.requests[self.high].choices[0]
        assert choice.node is not None
        return self.world.core.planner.admission.fits(self.worker, choice, self.worker.cache.cached(choice.node))

    def retract(self, below: int) -> int:
        rows = [row for row in self.worker.rows.values() if row.choice.request.priority < below]
        rows = [row for row in rows if row.extending or row.quota > 0]
        for row in rows:
            self.world.core.life.retract(row)
        return len(rows)


@pytest.mark.parametrize("seed", range(60))
def test_rows_give_way_if_and_only_if_that_makes_room(seed: int) -> None:
    """As many as may go are made to go in a second world of the same seed: if that does not help, nobody goes in the first."""
    crowd, everybody = Crowd(seed), Crowd(seed)
    if not crowd.first():
        return
    fits_before, eligible = crowd.has_room(), everybody.retract(10)
    crowd.world.turn()
    preempted = crowd.world.core.counters.preempted
    if not fits_before and eligible and everybody.has_room():
        assert 0 < preempted <= eligible
        assert crowd.high in running(crowd.world)
    else:
        assert preempted == 0
    crowd.world.finish()
    for rid in (*crowd.rids, crowd.high):
        crowd.world.cancel(rid)
    crowd.world.finish()
    crowd.world.assert_empty()


@pytest.mark.parametrize("seed", range(40))
def test_random_priorities_on_few_pages_change_no_text(seed: int) -> None:
    rng = random.Random(seed)
    shape = profile(page_size=rng.choice([1, 4]), pages=rng.choice([40, 80]), slots=rng.choice([1, 2, 5]))
    settings = Settings(
        chunk_tokens=rng.choice([8, 32]), depth=rng.choice([1, 2, 3]), preempt_above=rng.choice([0, 2]), max_queued=1000
    )
    world = World(settings, shape, late=rng.choice([0.0, 0.2]))
    world.join("w1", FakeWorker(shape)) if rng.random() < 0.4 else None
    wanted = {}
    for _ in range(60):
        if rng.random() < 0.6:
            prompt = [1 + rng.randrange(2)] * rng.randrange(1, 12) + [rng.randrange(3, 30)]
            most = rng.choice([1, 5, 15])
            wanted[world.open(prompt, max_tokens=most, ignore_eos=True, priority=rng.randrange(6))] = text(prompt, most)
        world.turn()
        for name in world.workers:
            if rng.random() < 0.8:
                world.step(name)
    world.finish()
    for rid, output in wanted.items():
        assert world.outputs[rid, 0] == output
        world.cancel(rid)
    world.finish()
    world.assert_empty()
