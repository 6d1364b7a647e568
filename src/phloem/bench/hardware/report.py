"""Show what `hardware` measured as tables, and write it as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from ..aim import Aim
from .aims import aim_of, aims
from .figures import DECODE, PREFILL, Row
from .neighbours import QUIET
from .plan import HardwarePlan
from .run import HardwareOutcome

FORMAT = 1
"""Version of the JSON file."""
NAMES = {"none": "as they are", "int8": "int8", "int4": "int4", "stored": "as stored"}


def tables(plan: HardwarePlan, outcome: HardwareOutcome) -> Iterator[Table]:
    """The machine, decode steps, prompts."""
    yield _machine(plan, outcome)
    rows = outcome.rows
    yield _decode(plan, outcome, [row for row in rows if row.kind == DECODE])
    yield _prefill(plan, outcome, [row for row in rows if row.kind == PREFILL])


def verdicts(outcome: HardwareOutcome) -> Iterator[str]:
    """A line for each aim."""
    for aim in aims(outcome.rows):
        yield f"{_verdict(aim)}: {aim.text}: {aim.value:.2f} {aim.unit}, aim {_bound(aim)}"


def disturbance(outcome: HardwareOutcome) -> str:
    """A line that says so if the machine was not quiet, else ""."""
    if outcome.others is None or outcome.others <= QUIET:
        return ""
    return f"NOT quiet: others used {outcome.others:.1f} cores meanwhile; these figures say little about this machine"


def as_json(plan: HardwarePlan, outcome: HardwareOutcome) -> bytes:
    """Everything that was measured."""
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-hardware",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "plan": asdict(plan),
        "model": outcome.model,
        "dtype": outcome.dtype,
        "kernels": outcome.level,
        "threads": outcome.threads,
        "others_cores": outcome.others,
        "weight_bytes": outcome.weight_bytes,
        "limits": {
            **asdict(outcome.limit),
            "bandwidth_gb_s": outcome.limit.bandwidth,
            "rate_gflop_s": outcome.limit.rate,
        },
        "rows": [{**asdict(row), "tokens_per_s": row.tokens_per_s} for row in outcome.rows],
        "samples": [{**asdict(sample), "of_limit": sample.of_limit} for sample in outcome.samples],
        "aims": [{**asdict(aim), "holds": aim.holds} for aim in aims(outcome.rows)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _machine(plan: HardwarePlan, outcome: HardwareOutcome) -> Table:
    limit = outcome.limit
    table = _table(f"the machine, {outcome.threads} threads, medians of {len(outcome.limits)} rounds", "", "")
    for way, rate in limit.reads.items():
        best = " (taken)" if rate == limit.bandwidth else ""
        table.add_row(f"memory, {plan.buffer_mb} MiB, {way}", f"{rate:,.1f} GB/s{best}")
    for who, rate in limit.products.items():
        table.add_row(f"{outcome.dtype} {plan.square} x {plan.square} x {plan.square}, {who}", f"{rate:,.0f} GFLOP/s")
    table.add_row(f"{outcome.dtype} in the model's own shapes, torch", f"{limit.own_shapes:,.0f} GFLOP/s")
    return table


def _decode(plan: HardwarePlan, outcome: HardwareOutcome, rows: list[Row]) -> Table:
    title = f"decode steps of {outcome.model}, {outcome.level} kernels, {plan.context} tokens before"
    table = _table(
        title, "weights", "MB", "rows", "ms", "torch ms", "/ torch", "/ reading the weights", "tokens/s", "aim"
    )
    for row in rows:
        table.add_row(
            NAMES[row.quantize],
            f"{outcome.weight_bytes[row.quantize] / 1e6:,.0f}",
            f"{row.size}",
            f"{row.ours_ms:,.2f}",
            f"{row.torch_ms:,.2f}",
            f"{row.of_torch:.2f}x",
            f"{row.of_limit:.2f}x",
            f"{row.tokens_per_s:,.0f}",
            _held(row),
        )
    return table


def _prefill(plan: HardwarePlan, outcome: HardwareOutcome, rows: list[Row]) -> Table:
    title = f"prompts of {outcome.model}, {outcome.level} kernels"
    table = _table(title, "weights", "tokens", "ms", "torch ms", "/ torch", "of the matrix rate", "tokens/s", "aim")
    for row in rows:
        table.add_row(
            NAMES[row.quantize],
            f"{row.size}",
            f"{row.ours_ms:,.1f}",
            f"{row.torch_ms:,.1f}",
            f"{row.of_torch:.2f}x",
            f"{row.of_limit:.0%}",
            f"{row.tokens_per_s:,.0f}",
            _held(row),
        )
    return table


def _held(row: Row) -> str:
    aim = aim_of(row)
    return "" if aim is None else f"{_bound(aim)}: {_verdict(aim)}"


def _verdict(aim: Aim) -> str:
    return "held" if aim.holds else "NOT held"


def _bound(aim: Aim) -> str:
    return f"{'>=' if aim.least else '<='} {aim.limit:g} {aim.unit}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left")
    return table
