"""A bar for whoever watches a start in a terminal; nothing in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tick = Callable[[], None]
"""Called as each part is done."""


def no_tick() -> None:
    """For whoever watches nothing."""


@contextmanager
def bar(label: str, parts: int) -> Iterator[Tick]:
    """A progress bar of so many ``parts`` on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield no_tick
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=parts)
        yield lambda: shown.advance(task)
