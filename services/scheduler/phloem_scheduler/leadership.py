"""Whose turn it is to lead: plain decisions over the schedulers that are seen. One leads per model, with the highest term."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Term = tuple[int, str]
"""(number, instance): ordered, so two that took the same number are not equal."""


@dataclass(slots=True)
class Leadership:
    """Starts as a standby."""

    instance: str
    number: int = 0
    """Our term while we lead, else 0."""
    highest: int = 0
    """Highest number seen anywhere."""

    def sees(self, terms: Iterable[Term]) -> None:
        """The terms of other schedulers that are there (number 0: a standby). A higher one than ours ends our lead."""
        for number, instance in terms:
            self.highest = max(self.highest, number)
            if self.number and (number, instance) > (self.number, self.instance):
                self.number = 0

    def fenced(self, number: int, others_lead: bool) -> None:
        """A worker follows a higher term. If its leader is not to be seen, ours was only too low: go beyond it."""
        self.highest = max(self.highest, number)
        if self.number and number >= self.number:
            self.number = 0 if others_lead else self.highest + 1

    def take(self) -> int:
        """Nobody leads: we do, above every term seen."""
        self.highest += 1
        self.number = self.highest
        return self.number
