"""A row of the table: what was measured under one fault, what was aimed at, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass

from .figures import Figures


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim in a few words."""

    text: str
    held: bool
    found: str = ""
    """What was found instead, if that is not among the figures."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault, done."""

    name: str
    title: str
    figures: Figures
    aims: tuple[Aim, ...]
    said: str = ""
    """The line by which the deployment showed that it had noticed."""
    troubles: tuple[str, ...] = ()
    """Why requests failed, each kind once."""
    lines: tuple[str, ...] = ()
    """What else is told of it, below the table."""

    @property
    def held(self) -> bool:
        return all(aim.held for aim in self.aims)


def none_fail(figures: Figures, refused: bool = False) -> Aim:
    """Every request came to its proper end (or, with ``refused``, was told at once to come back later)."""
    missing = figures.requests - figures.ended - (figures.refused if refused else 0)
    return Aim("0 fail", figures.failed == 0 and missing == 0)


def same_text(figures: Figures) -> Aim:
    """Nothing differs from the undisturbed answers, where those can be compared; nothing came twice; schemas are kept."""
    right = figures.wrong == 0 and figures.duplicated == 0
    found = f"{figures.wrong} against their schema" if figures.wrong else ""
    if figures.differs is None:
        return Aim("valid, nothing twice", right, found)
    return Aim("same text", right and figures.differs == 0, found)


def gap(figures: Figures, most_s: float, text: str = "") -> Aim:
    """No stream was silent for longer."""
    worst = figures.worst_gap_s
    return Aim(text or f"gap <= {most_s:g} s", worst is not None and worst <= most_s)
