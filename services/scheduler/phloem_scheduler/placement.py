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


class Placement:
    """Ranks workers for one pass; told of each admission, so that the next choice sees it."""

    def __init__(self, workers: Iterable[WorkerState], guard: Guard) -> None:
        self._guard = guard
        self._backlog = {worker: worker.backlog for worker in workers}
        self._pace = paces(self._backlog)

    def admitted(self, worker: WorkerState, tokens: int) -> None:
        """worker has so many more known tokens to compute."""
        self._backlog[worker] += tokens

    def rank(self, choice: Choice) -> list[Place]:
        """Workers that can hold choice with as much output as any can, best first; none if its prompt is too long for all."""
        limits = {worker: output_limit(choice.request, worker) for worker in self._backlog}
        most_output = max(limits.values(), default=0)
        there = [
            worker for worker, limit in limits.items() if limit == most_output and not too_small(choice.request, worker)
        ]
        if len(there) < 2:
            return [Place(worker, "only") for worker in there]
        assert choice.node is not None
        cached = {worker: worker.cache.cached(choice.node).depth * worker.cache.page_size for worker in there}
        least = min(len(worker.rows) for worker in there)
        most = max(cached.values())
        ranked = sorted(there, key=lambda worker: self._cost(worker, choice.length - cached[worker], least))
        first = ranked[0]
        reason = "load"
        if cached[first] == most and most > min(cached.values()):
            reason = "prefix"
        elif any(cached[worker] > cached[first] and self._guard.over(len(worker.rows), least) for worker in there):
            reason = "balance"
        return [Place(first, reason), *(Place(worker, "load") for worker in ranked[1:])]

    def _cost(self, worker: WorkerState, tokens: int, least: int) -> tuple[bool, float, int, str]:
        rows = len(worker.rows)
        work = (tokens + self._backlog[worker] + rows * ROW_TOKENS) * self._pace[worker]
        return self._guard.over(rows, least), work, rows, worker.instance


def paces(workers: Iterable[WorkerState]) -> dict[WorkerState, float]:
    """Milliseconds per token. A worker that has not been measured yet is taken to be as fast as the others are on average."""
    measured = {worker: worker.pace.line()[1] for worker in workers}
    known = [each for each in measured.values() if each > 0]
    usual = sum(known) / len(known) if known else 1.0
    return {worker: each if each > 0 else usual for worker, each in measured.items()}
