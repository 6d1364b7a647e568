"""Show findings, and write them as JSON."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .finding import Finding, Level, can_serve

FORMAT = 1
"""Version of the JSON file."""
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show(findings: Sequence[Finding], console: Console) -> None:
    """A line per finding and one that sums up; columns where there is a terminal, whole lines where there is none."""
    if console.is_terminal:
        console.print(_table(findings))
    else:
        for line in _lines(findings):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(summary(findings), soft_wrap=True, markup=False, highlight=False)


def summary(findings: Iterable[Finding]) -> str:
    """In one line."""
    found = list(findings)
    counts = Counter(finding.level for finding in found)
    told = ", ".join(
        f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}" for level in (Level.WARNING, Level.ERROR)
    )
    return (
        f"{told}: {'a model can be served here' if can_serve(found) else 'no model can be served here as things are'}"
    )


def as_json(findings: Sequence[Finding]) -> bytes:
    """Everything that was found."""
    document = {
        "format": FORMAT,
        "kind": "phloem-doctor",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "can_serve": can_serve(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _table(findings: Iterable[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        text: RenderableType = Text(finding.text)
        if finding.advice:
            text = Group(text, Text(f"-> {finding.advice}", style="bold"))
        table.add_row(Text(finding.level, style=STYLES[finding.level]), Text(finding.topic), text)
    return table


def _lines(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        advice = f" -> {finding.advice}" if finding.advice else ""
        yield f"{finding.level:8} {finding.topic:12} {finding.text}{advice}"
