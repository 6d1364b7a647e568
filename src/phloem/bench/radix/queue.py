"""What the queue costs: adding, removing, picking, and nodes that become readable or are about to; and the textbook's way beside it."""

from __future__ import annotations

import random

from phloem_scheduler.requests import Choice

from .bed import Bed, pick, some
from .clock import Clock, Figure, Stopwatch
from .prompts import Prompts
from .textbook import in_order

TEXTBOOK_CHOICES = 20_000
"""Choices that the textbook's passes may look at in all, but for three passes: it takes long."""
MOST_TEXTBOOK_PASSES = 100
PICKS_IN_A_ROW = 50
"""Then as many in a small queue, so that both are timed while the machine is equally busy."""


class QueueTimes:
    """Stopwatches of the queue's operations. ``pick_small``: in another, small queue."""

    def __init__(self, clock: Clock) -> None:
        self.add = Stopwatch(clock)
        self.remove = Stopwatch(clock)
        self.pick = Stopwatch(clock)
        self.pick_small = Stopwatch(clock)
        self.hide = Stopwatch(clock)
        self.show = Stopwatch(clock)
        self.arrive = Stopwatch(clock)
        self.textbook = Stopwatch(clock)

    def figures(self) -> dict[str, Figure | None]:
        """By operation."""
        return {name: stopwatch.figure() for name, stopwatch in vars(self).items()}


class Small:
    """A small tree with a small queue."""

    def __init__(self, prompts: Prompts, count: int, page_size: int) -> None:
        self._prompts = prompts
        self._bed = Bed(page_size)
        for _ in range(count):
            self._bed.store(prompts.draw())
            self._bed.queue.add(self._bed.choice(prompts.draw()))

    def picks(self, stopwatch: Stopwatch, count: int) -> None:
        """Time so many picks; for each who is picked another comes."""
        for _ in range(count):
            stopwatch.time(pick, self._bed.queue)
            self._bed.queue.add(self._bed.choice(self._prompts.draw()))


def fill(bed: Bed, prompts: Prompts, count: int, times: QueueTimes, timed: int) -> None:
    """``count`` choices wait, of which the last ``timed`` are timed as they are added."""
    choices = [bed.choice(prompts.draw()) for _ in range(count)]
    for at, choice in enumerate(choices):
        if at >= count - timed:
            times.add.time(bed.queue.add, choice)
        else:
            bed.queue.add(choice)


def measure(bed: Bed, prompts: Prompts, small: Small, times: QueueTimes, repeat: int, rng: random.Random) -> None:
    """Measure each operation up to ``repeat`` times, with as many waiting each time. Empties the queue."""
    _remove(bed, times, repeat, rng)
    _flip(bed, times, repeat, rng)
    _textbook(bed, times)
    for start in range(0, repeat, PICKS_IN_A_ROW):
        for _ in range(min(PICKS_IN_A_ROW, repeat - start)):
            times.pick.time(pick, bed.queue)
            bed.queue.add(bed.choice(prompts.draw()))
        small.picks(times.pick_small, min(PICKS_IN_A_ROW, repeat - start))
    _arrive(bed, times, repeat, rng)
    for choice in list(bed.queue):
        bed.queue.remove(choice)


def _remove(bed: Bed, times: QueueTimes, repeat: int, rng: random.Random) -> None:
    """Any of those who wait leaves, and comes back."""
    for choice in some(list(bed.queue), rng, repeat):
        times.remove.time(bed.queue.remove, choice)
        bed.queue.add(choice)


def _flip(bed: Bed, times: QueueTimes, repeat: int, rng: random.Random) -> None:
    """A row is about to compute a choice's path, so that nobody below can be picked, and then it is not."""
    row = object()
    for choice in some(list(bed.queue), rng, repeat):
        node = choice.node
        assert node is not None
        times.hide.time(bed.tree.compute, bed.cache.shelf, node, row)
        times.show.time(bed.tree.leave, bed.cache.shelf, node, row)


def _arrive(bed: Bed, times: QueueTimes, repeat: int, rng: random.Random) -> None:
    """A choice's path is entered, as when a plan that computes it is sent."""
    for choice in some(list(bed.queue), rng, min(repeat, len(bed.queue) // 2)):
        bed.store(choice.request.ids, times.arrive)


def _textbook(bed: Bed, times: QueueTimes) -> None:
    waiting: list[Choice] = list(bed.queue)
    for _ in range(min(MOST_TEXTBOOK_PASSES, max(3, TEXTBOOK_CHOICES // len(waiting)))):
        times.textbook.time(in_order, bed.tree, bed.cache.shelf, waiting)
