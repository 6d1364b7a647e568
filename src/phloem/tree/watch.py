"""Draw once, or again and again until interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from .draw import draw
from .errors import NotSeen
from .picture import Picture

WIDE = 160
"""Columns where there is no terminal to ask."""


def once(look: Callable[[], Picture], console: Console) -> None:
    """Print the cache as it is. Raises `NotSeen`."""
    console.print(draw(look()), highlight=False)


def watch(
    look: Callable[[], Picture], console: Console, interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Draw the cache every ``interval_s`` seconds until interrupted; a server that is away for a while is waited for.

    Raises:
        NotSeen: nothing was seen yet, or asking again is pointless.
    """
    picture, note = look(), ""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            begun = time.monotonic()
            live.update(draw(picture, note), refresh=True)
            sleep(max(begun + interval_s - time.monotonic(), 0.0))
            try:
                picture, note = look(), ""
            except NotSeen as error:
                if error.final:
                    raise
                note = str(error)
