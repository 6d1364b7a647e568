"""Many seeds: run each beside its calm double, stop at the first failure, and shrink it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .scenario import Scenario, draw_scenario
from .world import Result, compare, simulate

SOMETIMES = (
    "fault kill", "fault drain", "fault partition", "fault cut", "fault deafen", "fault lossy", "fault doubling", "fault slow",
    "fault broker", "fault stall", "fault hang", "fault forge",
    "retraction", "adoption", "constrained request resumed", "message lost", "message doubled", "take-over", "client left",
    "client refused", "connection broke",
)  # fmt: skip
"""What a sweep that is long enough must have seen, or it tests less than it seems to."""
LONG_ENOUGH = 150
"""Seeds after which all of `SOMETIMES` is to be expected."""


@dataclass(slots=True)
class Run:
    """One scenario beside its calm double."""

    result: Result
    failures: list[str]


@dataclass(slots=True)
class Sweep:
    """What a sweep came to."""

    runs: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failed: Run | None = None

    @property
    def never(self) -> list[str]:
        """What should have happened sometimes, and never did."""
        return [what for what in SOMETIMES if not self.seen[what]]


def check(scenario: Scenario, *, keep_trace: bool = False) -> Run:
    """Run a scenario and the same calls undisturbed; what differs, or should not have happened in either, is a failure."""
    calm = simulate(scenario.calm())
    result = simulate(scenario, keep_trace=keep_trace)
    failures = [f"undisturbed: {each}" for each in calm.complaints] + result.complaints + compare(calm, result)
    for outcome in result.outcomes.values():
        result.seen["client left"] += outcome.left
        result.seen["client refused"] += outcome.refused
        result.seen["connection broke"] += outcome.broken
    return Run(result, list(dict.fromkeys(failures)))


def sweep(seeds: Iterable[int], *, on_run: Callable[[int, Run], None] = lambda _seed, _run: None) -> Sweep:
    """Check the scenarios of ``seeds`` until one fails."""
    done = Sweep()
    for seed in seeds:
        run = check(draw_scenario(seed))
        done.runs += 1
        done.seen.update(run.result.seen)
        on_run(seed, run)
        if run.failures:
            done.failed = run
            break
    return done


def shrink(scenario: Scenario, *, on_step: Callable[[Scenario], None] = lambda _: None) -> Scenario:
    """The smallest scenario found that still fails, by leaving out calls and faults: halves first, then one at a time."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(scenario):
            on_step(smaller)
            if check(smaller).failures:
                scenario, changed = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    calls = [call.number for call in scenario.calls]
    faults = [fault.number for fault in scenario.faults]
    size = max(len(calls), len(faults)) // 2
    while size:
        for start in range(0, len(faults), size):
            yield scenario.without(faults=set(faults[start : start + size]))
        if len(calls) > 1:
            for start in range(0, len(calls), size):
                left_out = set(calls[start : start + size])
                if len(left_out) < len(calls):
                    yield scenario.without(calls=left_out)
        size //= 2
