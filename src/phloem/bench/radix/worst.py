"""The longest calls into the core: what concerns all requests, or a whole cache, at once."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass

from phloem_proto.messages import Grammar, GrammarSpec, KvWatch, Live, Verdict

from .clock import Clock, Figure, Stopwatch
from .drive import GATEWAY, WORKER, Drive
from .prompts import Grouped

ROWS = 64
OUTPUT = 1000
LATER_S = 3600.0
"""Long after every deadline here."""
DEADLINE_MS = 1000
SPEC = GrammarSpec("regex", "[0-9]+")
VERDICT = Verdict(Grammar("digest", "llguidance", "regex", "[0-9]+"))


@dataclass(frozen=True, slots=True)
class Worst:
    """One event: the longest of the calls that it took, and all of them."""

    event: str
    calls: int
    total_ms: float
    figure: Figure

    @property
    def longest_ms(self) -> float:
        """The longest call, and the longest garbage collection as if it had fallen into it."""
        return (self.figure.most_us + self.figure.longest_collection_us) / 1e3


class Crowd:
    """Makes cores in which ``waiting`` requests wait behind `ROWS` rows, or ``cached`` prompts are cached."""

    def __init__(self, waiting: int, cached: int, page_size: int, rng: random.Random) -> None:
        self.waiting = waiting
        self.cached = cached
        self.page_size = page_size
        self.rng = rng

    def drive(self) -> tuple[Drive, Grouped]:
        """Nothing there yet."""
        prompts = Grouped(max(self.waiting, self.cached), self.page_size, self.rng)
        longest = len(prompts.draw()) + OUTPUT
        pages = self.cached * longest // self.page_size
        drive = Drive(
            page_size=self.page_size,
            rows=ROWS,
            queued=self.waiting + ROWS,
            sequence_tokens=longest,
            cached_pages=pages,
        )
        return drive, prompts

    def full(self, deadline_ms: int = 0, grammar: GrammarSpec | None = None, cached: bool = False) -> Drive:
        """Everybody there."""
        drive, prompts = self.drive()
        if cached:
            self._fill(drive, prompts)
        for _ in range(self.waiting + ROWS):
            drive.open(drive.message(prompts.draw(), OUTPUT, deadline_ms, grammar))
        drive.decide()
        return drive

    def warm(self) -> Drive:
        """Nobody there, but all that is cached."""
        drive, prompts = self.drive()
        self._fill(drive, prompts)
        return drive

    def _fill(self, drive: Drive, prompts: Grouped) -> None:
        """Cache prompts by computing them."""
        left = self.cached
        while left > 0:
            for _ in range(min(left, ROWS)):
                drive.open(drive.message(prompts.draw(), 0))
            left -= ROWS
            drive.decide()
            while drive.plans:
                drive.turn()
            drive.let_go()


def open_all(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive, prompts = crowd.drive()
    messages = [drive.message(prompts.draw(), OUTPUT) for _ in range(crowd.waiting + ROWS)]
    for message in messages:
        stopwatch.time(drive.open, message)
    drive.settle(stopwatch)


def gateway_gone(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full()
    stopwatch.time(drive.core.gateway_gone, GATEWAY, drive.now)
    drive.settle(stopwatch)


def given_up(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full()
    for _ in range(3):
        stopwatch.time(drive.core.live, GATEWAY, Live(()), drive.now)
        drive.settle(stopwatch)


def deadlines(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full(deadline_ms=DEADLINE_MS)
    drive.now += LATER_S
    drive.settle(stopwatch)


def judged(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full(grammar=SPEC)
    stopwatch.time(drive.core.verdict, SPEC, VERDICT)
    drive.settle(stopwatch)


def worker_gone(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full(cached=True)
    stopwatch.time(drive.core.worker_gone, WORKER)
    drive.settle(stopwatch)


def other_pages(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full()
    drive.core.worker_gone(WORKER)
    drive.decide()
    stopwatch.time(drive.join, 2 * crowd.page_size)
    drive.settle(stopwatch)


def no_worker(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.full()
    drive.core.worker_gone(WORKER)
    drive.settle(stopwatch)
    drive.now += LATER_S
    drive.settle(stopwatch)


def flush(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.warm()
    drive.core.flush(DEADLINE_MS, None, drive.now)
    drive.settle(stopwatch)


def snapshot(crowd: Crowd, stopwatch: Stopwatch) -> None:
    drive = crowd.warm()
    stopwatch.time(drive.core.watch, KvWatch(GATEWAY, True), None, drive.now)
    drive.settle(stopwatch)


EVENTS: dict[str, Callable[[Crowd, Stopwatch], None]] = {
    "requests open": open_all,
    "their gateway is gone": gateway_gone,
    "their gateway gives them up": given_up,
    "their deadlines pass": deadlines,
    "their grammar is judged": judged,
    "their worker is gone, with its cache": worker_gone,
    "a worker with other pages comes": other_pages,
    "no worker comes back": no_worker,
    "the cache is flushed": flush,
    "the cache is told to a watcher": snapshot,
}
"""What happens, in the order of the report. Those are ``waiting`` requests, and the cache has ``cached`` prompts."""


def measure(event: str, crowd: Crowd, clock: Clock) -> Worst:
    """Let it happen."""
    stopwatch = Stopwatch(clock)
    EVENTS[event](crowd, stopwatch)
    gc.collect()
    figure = stopwatch.figure()
    assert figure is not None
    return Worst(event, len(stopwatch), stopwatch.total_us / 1e3, figure)
