"""Carry out a plan, one simulation after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .jobs import Job, Row, Traced, jobs, traced
from .optimum import Optimum, optimum
from .plan import PolicyPlan


@dataclass(frozen=True, slots=True)
class Best:
    """The optimum on one pool of the workload eviction."""

    pool_pages: int
    pool_share: float
    optimum: Optimum


@dataclass(slots=True)
class PolicyOutcome:
    """All rows, in the order of their runs, and what they are measured by."""

    rows: list[Row] = field(default_factory=list)
    best: list[Best] = field(default_factory=list)

    def of(self, workload: str) -> list[Row]:
        """The rows of one workload."""
        return [row for row in self.rows if row.workload == workload]

    def gap_closed(self, row: Row) -> float | None:
        """What share of the prefill tokens between plain LRU and the optimum row saves; None where nothing is between them."""
        best = next((one for one in self.best if one.pool_pages == row.pool_pages), None)
        plain = next((one for one in self.of("eviction") if _is_plain(one) and one.pool_pages == row.pool_pages), None)
        if best is None or plain is None:
            return None
        gap = plain.figures.prefill_tokens - best.optimum.prefill_tokens
        return (plain.figures.prefill_tokens - row.figures.prefill_tokens) / gap if gap > 0 else None

    def saving(self, row: Row) -> float | None:
        """How many times as many tokens fcfs had to compute as row, all else being equal; None without such a run."""
        for one in self.of(row.workload):
            same = (one.eviction, one.pool_pages, one.visible) == (row.eviction, row.pool_pages, row.visible)
            if one.policy == "fcfs" and same and row.figures.prefill_tokens:
                return one.figures.prefill_tokens / row.figures.prefill_tokens
        return None


def _is_plain(row: Row) -> bool:
    return row.eviction == "lru" and not row.demand_aware


@dataclass(slots=True)
class Progress:
    """How far a plan is, in calls. Told to whoever draws the bar."""

    total: int
    draw: Callable[[int, str], None]
    """Takes calls that have ended, and what runs."""
    _before: int = 0

    def run(self, job: Job) -> Row:
        """Run job; the calls it makes beyond its total (an endless stream has none) don't count."""
        ended = 0

        def on_end() -> None:
            nonlocal ended
            ended = min(ended + 1, job.total)
            self.draw(self._before + ended, job.label)

        self.draw(self._before, job.label)
        row = job.run(on_end)
        self._before += job.total
        self.draw(self._before, job.label)
        return row


def run(plan: PolicyPlan, progress: Callable[[int], Callable[[int, str], None]]) -> PolicyOutcome:
    """Everything that plan asks for. progress: is given the number of calls in all, and returns what draws the bar.

    Raises:
        TraceError, OSError: the trace can't be read.
        BadPlan: a pool is too small for a single call.
        Refused: the scheduler refuses one.
    """
    trace = traced(plan)
    todo = jobs(plan, trace)
    outcome = PolicyOutcome(best=best(plan, trace))
    total = sum(job.total for job in todo)
    bar = Progress(total, progress(total))
    outcome.rows.extend(bar.run(job) for job in todo)
    return outcome


def best(plan: PolicyPlan, trace: Traced) -> list[Best]:
    """What the workload eviction is measured by."""
    if "eviction" not in plan.workloads:
        return []
    return [Best(pool.pages, share, optimum(trace.calls, pool)) for pool, share in trace.pools]
