"""What a bench is to show, and whether it does here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: ``value`` is at most (or, if ``least``, at least) ``limit``."""

    text: str
    value: float
    limit: float
    unit: str
    least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit
