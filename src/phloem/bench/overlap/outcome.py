"""Carry out all of `phloem bench overlap`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..aim import Aim
from .aims import ceiling_aim, idle_aim
from .ceiling import ceiling, profiles
from .figures import Idle
from .plan import Case, OverlapPlan
from .run import Turn, measure, medians
from .throughput import Ceiling, Profile


@dataclass(slots=True)
class OverlapOutcome:
    """Everything that was measured."""

    turns: list[Turn] = field(default_factory=list)
    ceiling: Ceiling | None = None
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By service."""

    @property
    def medians(self) -> dict[tuple[Case, int], Idle]:
        """Over rounds, by case and depth."""
        return medians(self.turns)

    @property
    def aims(self) -> list[Aim]:
        """Those that were measured."""
        found = [idle_aim(case, depth, one) for (case, depth), one in self.medians.items()]
        if self.ceiling is not None:
            found.append(ceiling_aim(self.ceiling))
        return [aim for aim in found if aim is not None]


async def overlap(plan: OverlapPlan, say: Callable[[Turn | str], None] = lambda what: None) -> OverlapOutcome:
    """Measure how idle the device is, then the ceiling, then where that goes; what ``plan`` has of it.

    Args:
        say: told each run when it is over, and what comes next.

    Raises:
        ProcessFailed, RequestsFailed, TooFewSteps, TimeoutError, BusError: a run could not be done.
        ModelError, NoVocabulary: the ceiling can't be measured with this model.
    """
    outcome = OverlapOutcome()
    with tempfile.TemporaryDirectory(prefix="phloem-overlap-") as name:
        folder = Path(name)
        if plan.cases:
            outcome.turns = await measure(plan, folder, say)
        if plan.ceiling is not None:
            say("the ceiling: a device that takes no time, and everybody else")
            outcome.ceiling = await ceiling(plan.ceiling, folder)
            if plan.profile:
                say("the ceiling again, under the profiler")
                outcome.profiles = await profiles(plan.ceiling.shorter(), folder, outcome.ceiling.us_per_token)
    return outcome
