"""One thing that was looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Something will be slower or smaller than it could be, or is not there that some uses need."""
    ERROR = "error"
    """No model can be served here as things are."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``text``: what is so, and what follows; ``advice``: what to do about it, "" = nothing."""

    topic: str
    level: Level
    text: str
    advice: str = ""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, Level.OK, text)


def warning(topic: str, text: str, advice: str) -> Finding:
    return Finding(topic, Level.WARNING, text, advice)


def error(topic: str, text: str, advice: str) -> Finding:
    return Finding(topic, Level.ERROR, text, advice)


def can_serve(findings: Iterable[Finding]) -> bool:
    """Whether nothing makes it impossible."""
    return all(finding.level is not Level.ERROR for finding in findings)
