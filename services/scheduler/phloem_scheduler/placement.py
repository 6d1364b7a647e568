"""On which worker a choice that was picked goes: where it is done soonest, by exact match length and load, with an imbalance guard.

A worker's cost is the work ahead of the choice there: known tokens it has to compute itself, those that rows there still have to, and a
share for each row that decodes, all at the worker's measured pace. A worker with far more rows than the least loaded comes last,
whatever it has cached: a popular prefix must not gather all traffic in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .admission import output_limit, too_small
from .requests import Choice
from .worker import WorkerState

# A row that decodes delays a newcomer about as much as so many prompt tokens do.
ROW_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Guard:
    """Rows above `ratio` times the least loaded worker's, and at least `rows` more, are too many."""

    ratio: float = 1.5
    rows: int = 16

    def over(self, rows: int, least: int) -> bool:
        """Whether a worker with so many rows takes no newcomer for its cache's sake."""
        return rows > least * self.ratio and rows - least >= self.rows


@dataclass(slots=True)
class Place:
    """A worker that could take the choice, and why it stands where it does."""

    worker: WorkerState
    reason: str
    """``only`` | ``prefix`` (has more of it than others) | ``load`` | ``balance`` (another has more of it, but too many rows)."""


@dataclass(slots=True)
class Load:
    """What a worker has to do, and what those will take who wait for its next plan."""

    rows: int
    backlog: int  # known tokens to compute
    claimed_slots: int = 0
    claimed_tokens: int = 0  # of room


class Placement:
    """Ranks workers for one pass; told of each choice that goes somewhere or waits for it, so that the next one sees it."""

    def __init__(self, workers: Iterable[WorkerState], guard: Guard) -> None:
        self._guard = guard
        self.loads = {worker: Load(len(worker.rows), worker.backlog) for worker in workers}
        self._pace = paces(self.loads)

    def admitted(self, worker: WorkerState, tokens: int) -> None:
        """worker has one row more, with so many known tokens to compute."""
        load = self.loads[worker]
        load.rows += 1
        load.backlog += tokens

    def awaited(self, worker: WorkerState, tokens: int, room: int) -> None:
        """A choice with so many known tokens to compute waits for worker's next plan, and will take a slot and so many tokens of room."""
        self.admitted(worker, tokens)
        load = self.loads[worker]
        load.claimed_slots += 1
        load.claimed_tokens += room

    def rank(self, choice: Choice) -> list[Place]:
        """Workers that can hold choice with as much output as any can, best first; none if its prompt is too long for all."""
        limits = {worker: output_limit(choice.request, worker) for worker in self.loads}
        most_output = max(limits.values(), default=0)
        there = [
            worker for worker, limit in limits.items() if limit == most_output and not too_small(choice.request, worker)
        ]
        if len(there) < 2:
            return [Place(worker, "only") for worker in there]
        assert choice.node is not None
        cached = {worker: worker.cache.cached(choice.node).depth * worker.cache.page_size for worker in there}
        least = min(self.loads[worker].rows for worker in there)
        most = max(cached.values())
        ranked = sorted(there, key=lambda worker: self._cost(worker, choice.length - cached[worker], least))
        first = ranked[0]
        reason = "load"
        if cached[first] == most and most > min(cached.values()):
            reason = "prefix"
        elif any(
            cached[worker] > cached[first] and self._guard.over(self.loads[worker].rows, least) for worker in there
        ):
            reason = "balance"
        return [Place(first, reason), *(Place(worker, "load") for worker in ranked[1:])]

    def _cost(self, worker: WorkerState, tokens: int, least: int) -> tuple[bool, float, int, str]:
        load = self.loads[worker]
        work = (tokens + load.backlog + load.rows * ROW_TOKENS) * self._pace[worker]
        return self._guard.over(load.rows, least), work, load.rows, worker.instance


def paces(workers: Iterable[WorkerState]) -> dict[WorkerState, float]:
    """Milliseconds per token. A worker of which that has not been learnt yet is taken to be as fast as the others are on average.

    While it has been learnt of none, what was measured of each counts: time that steps take without tokens is blamed on tokens everywhere then.
    """
    measured = {worker: worker.pace.line()[1] for worker in workers}
    learnt = {worker: each for worker, each in measured.items() if worker.pace.learnt}
    known = learnt or {worker: each for worker, each in measured.items() if each > 0}
    usual = sum(known.values()) / len(known) if known else 1.0
    return {worker: known.get(worker, usual) for worker in measured}
