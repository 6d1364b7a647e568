"""From the steps of a run to how idle the device was. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..stats import percentile

WARM_STEPS = 20
"""Steps in front that are not counted: the first after the prompts still have caches to fill."""


class TooFewSteps(ValueError):
    """Raised when a run has not enough full steps to say anything."""


@dataclass(frozen=True, slots=True)
class Step:
    """One result, as it passed on the bus."""

    number: int
    arrived_s: float
    """On the observer's clock."""
    rows: int
    drawn: int
    """Rows that yielded a token."""
    busy_ms: float
    """Of the device: the forward pass and the draw."""
    idle_ms: float
    """How long the device did nothing between the end of the step before and the end of this one, as it says itself."""


@dataclass(frozen=True, slots=True)
class Idle:
    """One run. Shares are of the time between the first and the last counted step."""

    steps: int
    idle_share: float
    """Time the device did nothing, as it says itself."""
    late_steps: int
    """Steps before which it did nothing for longer than a hundredth of a step."""
    idle_p50_us: float
    idle_p99_us: float
    idle_max_ms: float
    lost_share: float
    """By the observer's clock: what of the time between the first and the last result was not steps x step time."""
    period_ms: float
    """Time from one result to the next."""
    busy_p50_ms: float
    """What the device spends on a step, as it says itself."""


def full_steps(steps: Sequence[Step], rows: int) -> list[Step]:
    """The steps in which all ``rows`` drew a token, in order, each once (a frame may be sent twice), without the first `WARM_STEPS`."""
    by_number = {step.number: step for step in reversed(steps)}
    full = [step for _, step in sorted(by_number.items()) if step.rows == rows == step.drawn]
    return full[WARM_STEPS:]


def idle(steps: Sequence[Step], step_ms: float) -> Idle:
    """How idle the device was over ``steps`` (from `full_steps`), whose true length is ``step_ms``.

    Raises:
        TooFewSteps: there are less than ten.
    """
    if len(steps) < 10:
        raise TooFewSteps(f"only {len(steps)} full steps; ask for more --steps")
    waits = sorted(step.idle_ms for step in steps)
    waited, worked = sum(waits), sum(step.busy_ms for step in steps)
    span_ms = (steps[-1].arrived_s - steps[0].arrived_s) * 1e3
    period = span_ms / (steps[-1].number - steps[0].number)
    return Idle(
        steps=len(steps),
        idle_share=waited / (waited + worked),
        late_steps=sum(wait > step_ms / 100 for wait in waits),
        idle_p50_us=percentile(waits, 0.5) * 1e3,
        idle_p99_us=percentile(waits, 0.99) * 1e3,
        idle_max_ms=waits[-1],
        lost_share=1 - step_ms / period,
        period_ms=period,
        busy_p50_ms=median(step.busy_ms for step in steps),
    )


def middle(runs: Sequence[Idle]) -> Idle:
    """The median of each figure over runs (not empty)."""
    return Idle(
        steps=sum(run.steps for run in runs),
        idle_share=median(run.idle_share for run in runs),
        late_steps=sum(run.late_steps for run in runs),
        idle_p50_us=median(run.idle_p50_us for run in runs),
        idle_p99_us=median(run.idle_p99_us for run in runs),
        idle_max_ms=max(run.idle_max_ms for run in runs),
        lost_share=median(run.lost_share for run in runs),
        period_ms=median(run.period_ms for run in runs),
        busy_p50_ms=median(run.busy_p50_ms for run in runs),
    )
