"""What the commands have in common before and around a measurement: options that are checked, and problems said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from phloem_bus.extras import advice

WIDE = 160
"""Columns where no terminal says how wide it is."""


def fail(message: object, code: int = 1) -> NoReturn:
    """End the command with one line on standard error. code: 1 = it could not be done, 2 = wrong options."""
    typer.echo(f"phloem bench: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def parts() -> Iterator[None]:
    """Around the imports of what a command needs; if something is not installed, one line says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(advice(error, "all"), 2)


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, if it is allowed; otherwise the command ends."""
    if value not in allowed:
        fail(f"{option} must be one of {', '.join(allowed)}", 2)
    return value


def check_files(output: Path | None, plot: Path | None, code: int) -> None:
    """End the command if the files could not be written later: what is measured for minutes is not to be lost then.

    Args:
        output, plot: JSON and PNG file, None = none. What draws is looked for but not imported: it would be in the way of what is timed.
        code: exit code where a folder does not exist.
    """
    if plot is not None and find_spec("matplotlib") is None:
        fail(f"--plot {advice(ModuleNotFoundError(name='matplotlib'), 'bench')}", 2)
    for option, path in (("--output", output), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            fail(f"{option}: the folder {path.parent} does not exist", code)


def wide_console() -> Console:
    """As wide as the terminal, or `WIDE`."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
