"""Carry out `phloem bench radix`."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass

from phloem_bus.garbage import only_young

from . import memory, passes, queue, tree, worst
from .bed import Bed
from .clock import Clock, Figure, Stopwatch
from .memory import Memory
from .passes import Load, Passes
from .prompts import Chain, Flat, Grouped, Prompts
from .worst import EVENTS, Crowd, Worst

MOST_SIZE = 1_000_000
MOST_PAGE_SIZE = 256
MOST_REPEAT = 10_000
MOST_WAITING = 10_000
"""Requests that wait while whole passes are timed."""
CHAIN_DEPTH = 1000
MOST_BEDS = 20
"""Small trees are built several times, to have more samples of what changes them."""


@dataclass(frozen=True, slots=True)
class RadixPlan:
    """What to measure. Raises ValueError for what can't be."""

    sizes: tuple[int, ...] = (10, 1000, 10_000, 100_000)
    """Cached prompts, and as many that wait."""
    repeat: int = 1000
    """Samples of each operation."""
    page_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or not all(1 <= size <= MOST_SIZE for size in self.sizes):
            raise ValueError(f"--sizes: one or more numbers from 1 to {MOST_SIZE}")
        if not 1 <= self.repeat <= MOST_REPEAT:
            raise ValueError(f"--repeat: from 1 to {MOST_REPEAT}")
        if not 1 <= self.page_size <= MOST_PAGE_SIZE:
            raise ValueError(f"--page-size: from 1 to {MOST_PAGE_SIZE}")

    @property
    def smallest(self) -> int:
        return min(self.sizes)

    @property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def waiting(self) -> int:
        """Behind the rows whose passes are timed."""
        return min(MOST_WAITING, self.largest)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree of one shape and size: so many cached prompts, and as many that wait."""

    name: str
    size: int

    def prompts(self, page_size: int, rng: random.Random) -> Prompts:
        match self.name:
            case "flat":
                return Flat(page_size, rng)
            case "chain":
                return Chain(self.size, page_size, rng)
            case _:
                return Grouped(self.size, page_size, rng)


@dataclass(frozen=True, slots=True)
class Scene:
    """What was measured on one shape."""

    shape: Shape
    nodes: int
    """Of the cached prompts."""
    tree: dict[str, Figure | None]
    queue: dict[str, Figure | None]
    memory: Memory
    full_collection_ms: float
    """What a full garbage collection would take while all of it is there: the scheduler makes none then."""


@dataclass(frozen=True, slots=True)
class RadixOutcome:
    """Everything that was measured."""

    scenes: list[Scene]
    passes: list[Passes]
    worst: list[Worst]


def shapes(plan: RadixPlan) -> list[Shape]:
    """In the order of the report."""
    grouped = [Shape("grouped", size) for size in dict.fromkeys(plan.sizes)]
    return [*grouped, Shape("flat", plan.largest), Shape("chain", min(plan.largest, CHAIN_DEPTH))]


def steps(plan: RadixPlan) -> int:
    """How often `radix` calls ``on_step``."""
    return len(shapes(plan)) + len(passes.ROWS) * len(Load) + len(EVENTS)


def radix(plan: RadixPlan, on_step: Callable[[str], None] = lambda name: None) -> RadixOutcome:
    """Measure everything, with garbage collected as in a scheduler's own process. on_step: told what comes next."""
    scenes: list[Scene] = []
    timed: list[Passes] = []
    longest: list[Worst] = []
    with Clock() as clock, only_young():
        for shape in shapes(plan):
            on_step(f"{shape.name}, {shape.size:,} prompts")
            scenes.append(_scene(plan, shape, clock))
        for rows in passes.ROWS:
            for load in Load:
                on_step(f"passes, {rows} rows, {load.value}")
                waiting = 0 if load is Load.DECODE else plan.waiting
                rng = random.Random(plan.seed)
                timed.append(passes.measure(rows, waiting, load, plan.page_size, clock, plan.repeat, rng))
                gc.collect()
        for event in EVENTS:
            on_step(event)
            crowd = Crowd(plan.waiting, plan.largest, plan.page_size, random.Random(plan.seed))
            longest.append(worst.measure(event, crowd, clock))
    return RadixOutcome(scenes, timed, longest)


def _scene(plan: RadixPlan, shape: Shape, clock: Clock) -> Scene:
    rng = random.Random(plan.seed)
    tree_times, queue_times = tree.TreeTimes(clock), queue.QueueTimes(clock)
    collection = Stopwatch(clock)
    least = Shape("grouped", plan.smallest)
    small = queue.Small(least.prompts(plan.page_size, rng), least.size, plan.page_size)
    nodes = 0
    for _ in range(max(1, min(MOST_BEDS, plan.repeat // shape.size))):
        prompts = shape.prompts(plan.page_size, rng)
        bed = Bed(plan.page_size)
        cached = tree.fill(bed, prompts, shape.size, tree_times, plan.repeat)
        nodes = bed.tree.size
        tree.matches(bed, prompts, tree_times, plan.repeat)
        queue.fill(bed, prompts, shape.size, queue_times, plan.repeat)
        collection.time(gc.collect)
        queue.measure(bed, prompts, small, queue_times, plan.repeat, rng)
        tree.splits(bed, rng.sample(cached, min(shape.size, plan.repeat)), tree_times, rng)
        tree.evictions(bed, tree_times, plan.repeat)
        del bed, cached
        gc.collect()
    kept = memory.measure(shape.prompts(plan.page_size, rng), shape.size, plan.page_size)
    gc.collect()
    figure = collection.figure()
    assert figure is not None
    longest = figure.longest_collection_us / 1e3
    return Scene(shape, nodes, tree_times.figures(), queue_times.figures(), kept, longest)
