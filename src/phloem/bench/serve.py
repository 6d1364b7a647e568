"""`phloem bench serve` behind its options: run the measurement under a progress bar, print, write, and say how it went."""

from __future__ import annotations

from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .measure import Outcome, Server, Watcher, measure
from .plan import Plan
from .record import Record
from .report import as_json, show


def serve(
    plan: Plan,
    servers: list[Server],
    *,
    output: Path | None,
    picture: Path | None,
    records: bool,
    quiet: bool,
    console: Console,
) -> int:
    """Measure and report.

    Args:
        output: JSON file to write, None = none; with ``records`` it holds one entry per request.
        picture: PNG file to draw, None = none.
        quiet: no progress bar.

    Returns:
        Exit code: 0 if every request went well, else 1.

    Raises:
        ServerUnusable, TraceError, OSError, ValueError: as `measure`.
    """
    with _progress(console, quiet) as progress:
        outcome: Outcome = anyio.run(
            measure, plan, servers, _watcher(progress, plan), backend_options={"use_uvloop": True}
        )
    show(console, plan, servers, outcome)
    if output is not None:
        output.write_bytes(as_json(plan, servers, outcome, records=records))
        console.print(f"written to {output}", highlight=False)
    if picture is not None:
        from .plot import plot

        plot(plan, servers, outcome, picture)
        console.print(f"drawn into {picture}", highlight=False)
    return 0 if all(turn.summary.succeeded == turn.summary.requests for turn in outcome.turns) else 1


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("failed {task.fields[failed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
        # Drawing costs the generator milliseconds: twice a second is enough to see that it moves.
        refresh_per_second=2,
    )


def _watcher(progress: Progress, plan: Plan) -> Watcher:
    current: list[TaskID] = []
    failed = 0

    def on_turn(round_index: int, label: str, requests: int) -> None:
        nonlocal failed
        failed = 0
        current.append(progress.add_task(f"{label} round {round_index + 1}/{plan.rounds}", total=requests, failed=0))

    def on_done(record: Record) -> None:
        nonlocal failed
        failed += not record.ok
        progress.update(current[-1], advance=1, failed=failed)

    def on_note(text: str) -> None:
        progress.console.print(f"note: {text}", highlight=False)

    return Watcher(on_turn, on_done, on_note)
