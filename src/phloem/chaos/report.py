"""Show what faults did, and write it as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from .figures import Figures
from .outcome import Outcome
from .run import Chaos

FORMAT = 1
"""Version of the JSON file."""
_COLUMNS = (
    "requests", "ended", "refused", "failed", "text differs", "duplicated", "worst client gap s", "noticed s", "recovered s",
)  # fmt: skip


def table(chaos: Chaos) -> Table:
    """A row per fault."""
    wishes = chaos.wishes
    compared = (
        "float32: texts are compared"
        if chaos.exact
        else "not float32: texts may change by rounding and are not compared"
    )
    title = f"phloem chaos: {wishes.model}, {wishes.streams} streams of about {wishes.tokens} tokens, {compared}"
    found = Table(title=title, title_justify="left")
    found.add_column("fault")
    for heading in _COLUMNS:
        found.add_column(heading, justify="right")
    found.add_column("aim")
    found.add_column("held?")
    for outcome in chaos.outcomes:
        aims = "; ".join(aim.text for aim in outcome.aims)
        found.add_row(outcome.title, *_cells(outcome.figures), aims, "yes" if outcome.held else "[bold red]NO[/]")
    return found


def remarks(chaos: Chaos) -> Iterator[str]:
    """What rows have to tell beside the table."""
    for outcome in chaos.outcomes:
        for line in outcome.lines:
            yield f"{outcome.name}: {line}"


def misses(chaos: Chaos) -> Iterator[str]:
    """A line for each aim that does not hold."""
    for outcome in chaos.outcomes:
        for aim in outcome.aims:
            if not aim.held:
                yield f"{outcome.name}: not held: {aim.text}" + (f" ({aim.found})" if aim.found else "")
        for trouble in outcome.troubles:
            yield f"{outcome.name}: a request failed: {trouble}"
    if chaos.trouble:
        yield f"could not go on: {chaos.trouble}"


def as_json(chaos: Chaos) -> bytes:
    """Everything that was measured."""
    document = {
        "format": FORMAT,
        "kind": "phloem-chaos",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "wishes": {name: str(value) if name == "file" else value for name, value in asdict(chaos.wishes).items()},
        "texts_compared": chaos.exact,
        "held": chaos.held,
        "interrupted": chaos.interrupted,
        "trouble": chaos.trouble,
        "rows": [_row(outcome) for outcome in chaos.outcomes],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _row(outcome: Outcome) -> dict[str, object]:
    return {**asdict(outcome), "held": outcome.held}


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        *(f"{count:,}" for count in (figures.requests, figures.ended, figures.refused, figures.failed)),
        "-" if figures.differs is None else f"{figures.differs:,}",
        f"{figures.duplicated:,}",
        *(
            "-" if value is None else f"{value:.2f}"
            for value in (figures.worst_gap_s, figures.noticed_s, figures.recovered_s)
        ),
    )
