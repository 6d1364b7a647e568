"""`phloem bench radix` behind its options: measure under a progress bar, print, write."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .report import as_json, tables
from .run import RadixPlan, radix, steps


def command(plan: RadixPlan, *, output: Path | None, picture: Path | None, quiet: bool, console: Console) -> None:
    """Measure and report.

    Args:
        output: JSON file to write, None = none.
        picture: PNG file to draw, None = none.
        quiet: no progress bar.

    Raises:
        OSError: a file can't be written.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # The bar is only drawn between steps: a thread that draws it would be in the way of what is timed.
    with Progress(*columns, console=console, disable=quiet, auto_refresh=False) as progress:
        task = progress.add_task("", total=steps(plan))
        begun = False

        def on_step(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, advance=int(begun), refresh=True)
            begun = True

        outcome = radix(plan, on_step)
        progress.update(task, description="done", advance=1, refresh=True)
    for table in tables(plan, outcome):
        console.print(table)
    if output is not None:
        output.write_bytes(as_json(plan, outcome))
        console.print(f"written to {output}", highlight=False)
    if picture is not None:
        from .plot import plot

        plot(plan, outcome, picture)
        console.print(f"drawn into {picture}", highlight=False)
