"""What a fault is: a name, a line that explains it, and how it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from .figures import Figures
from .outcome import Aim
from .scene import Scene
from .stream import Stream
from .wishes import Wishes


@dataclass(frozen=True, slots=True)
class Result:
    """What doing it showed."""

    figures: Figures
    aims: Sequence[Aim]
    streams: Sequence[Stream] = field(default=())
    said: str = ""
    lines: Sequence[str] = ()
    """What else is to be told of it, below the table."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table. ``long``: minutes, so only when asked for."""

    name: str
    title: str
    run: Callable[[Scene, Wishes], Awaitable[Result]]
    long: bool = False
