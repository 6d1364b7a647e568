"""Whose turn it is to lead: plain decisions over the schedulers that are seen. One leads per model, with the highest term."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from phloem_bus.terms import follows


class Claim(NamedTuple):
    """One scheduler's claim to lead; the greater one holds.

    Workers are the fence, so who has some comes before who has none, whatever their terms: a standby that only can't hear its leader claims
    a higher term and gets no worker. Then the number of the term counts; two that took the same number are not equal.
    """

    has_workers: bool
    number: int
    instance: str


@dataclass(slots=True)
class Leadership:
    """Starts as a standby."""

    instance: str
    number: int = 0
    """Our term while we lead, else 0."""
    highest: int = 0
    """Highest number seen anywhere."""

    def sees(self, others: Iterable[Claim], has_workers: bool) -> None:
        """The claims of other schedulers that are there. A greater one than ours, which ``has_workers`` or not, ends our lead."""
        for claim in others:
            if not follows(claim.number, self.highest):
                continue
            self.highest = max(self.highest, claim.number)
            if self.number and claim > Claim(has_workers, self.number, self.instance):
                self.number = 0

    def fenced(self, number: int, others_lead: bool) -> None:
        """A worker follows a higher term. If its leader is not to be seen, ours was only too low: go beyond it."""
        if not follows(number, self.highest):
            return
        self.highest = max(self.highest, number)
        if self.number and number >= self.number:
            self.number = 0 if others_lead else self.highest + 1

    def take(self) -> int:
        """Nobody leads: we do, above every term seen."""
        self.highest += 1
        self.number = self.highest
        return self.number
