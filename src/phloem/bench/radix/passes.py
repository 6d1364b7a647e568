"""Whole passes of the scheduler's core: a result and the decision after it, with a worker that computes nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from .clock import Clock, Figure, Stopwatch
from .drive import Drive
from .prompts import Grouped, Prompts

ROWS = (64, 256)
WARM_PASSES = 32
CHURN_OUTPUT = (16, 240)
"""Output tokens of requests that come and go; those of the other loads go on for as long as passes are timed."""


class Load(Enum):
    """What goes on while passes are timed."""

    DECODE = "all decode"
    QUEUED = "all decode, others wait"
    CHURN = "some end and others start"


@dataclass(frozen=True, slots=True)
class Passes:
    """How long passes took."""

    rows: int
    waiting: int
    load: Load
    figure: Figure

    @property
    def ms_per_64_rows(self) -> float:
        """The median, by rows."""
        return self.figure.p50_us / 1e3 * 64 / self.rows


class Traffic:
    """Keeps as many requests there as there were in the beginning."""

    def __init__(self, drive: Drive, prompts: Prompts, output: tuple[int, int], rng: random.Random) -> None:
        self._drive = drive
        self._prompts = prompts
        self._output = output
        self._rng = rng

    def open(self, count: int) -> None:
        """So many requests come."""
        for _ in range(count):
            self._drive.open(self._drive.message(self._prompts.draw(), self._rng.randint(*self._output)))

    def turn(self, stopwatch: Stopwatch | None) -> None:
        """One pass; then those who are done make room for new ones."""
        self._drive.turn(stopwatch)
        self.open(self._drive.let_go())


def measure(
    rows: int, waiting: int, load: Load, page_size: int, clock: Clock, repeat: int, rng: random.Random
) -> Passes:
    """Time ``repeat`` passes with so many rows, and so many requests that wait behind them."""
    stopwatch = Stopwatch(clock)
    prompts = Grouped(max(rows, waiting), page_size, rng)
    endless = (WARM_PASSES + repeat) * 2
    drive = Drive(
        page_size=page_size,
        rows=rows,
        queued=rows + waiting,
        sequence_tokens=len(prompts.draw()) + max(endless, CHURN_OUTPUT[1]),
    )
    traffic = Traffic(drive, prompts, CHURN_OUTPUT if load is Load.CHURN else (endless, endless), rng)
    traffic.open(rows + waiting)
    drive.decide()
    for _ in range(WARM_PASSES):
        traffic.turn(None)
    for _ in range(repeat):
        assert load is Load.CHURN or drive.core.running == rows
        traffic.turn(stopwatch)
    figure = stopwatch.figure()
    assert figure is not None
    return Passes(rows, waiting, load, figure)
