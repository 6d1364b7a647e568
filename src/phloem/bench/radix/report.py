"""Show what `radix` measured as tables, and write it as JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table

from .aims import aims, pick_growth, textbook_gain
from .clock import Figure
from .passes import Passes
from .run import RadixOutcome, RadixPlan, Scene
from .tree import LOCKED_TOKENS, MATCH_TOKENS
from .worst import Worst

FORMAT = 1
"""Version of the JSON file."""

TREE_ROWS = {
    **{f"match_{tokens}": f"find a cached prompt of {tokens:,}" for tokens in MATCH_TOKENS},
    "lock": f"lock and release {LOCKED_TOKENS:,}",
    "insert": "enter a prompt's own pages",
    "split": "split an edge for a prompt",
    "evict_page": "evict a page",
    "evict_page_in_bulk": "evict a page, 64 at once",
}
QUEUE_ROWS = {
    "add": "queue: add",
    "remove": "queue: remove",
    "pick": "queue: pick the next",
    "hide": "a path is about to be computed",
    "show": "and is not any more",
    "arrive": "a path is entered",
    "textbook": "textbook: match all, sort",
}


def tables(plan: RadixPlan, outcome: RadixOutcome) -> Iterable[Table]:
    """All tables, the verdict last."""
    least = f"{min(scene.shape.size for scene in outcome.scenes):,}" if outcome.scenes else ""
    for usual, title in ((True, "prompts in groups"), (False, "hard shapes")):
        scenes = [scene for scene in outcome.scenes if (scene.shape.name == "grouped") is usual]
        if scenes:
            yield _scenes(f"{title}: us of CPU time, p50 / p99, pages of {plan.page_size} tokens", scenes, least)
    yield _passes(outcome.passes)
    yield _worst(outcome.worst)
    yield _aims(outcome)


def as_json(plan: RadixPlan, outcome: RadixOutcome) -> bytes:
    """Everything that was measured."""
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-radix",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "plan": asdict(plan),
        "scenes": [_scene(scene) for scene in outcome.scenes],
        "passes": [
            {
                "rows": one.rows,
                "waiting": one.waiting,
                "load": one.load.value,
                "ms_per_64_rows": one.ms_per_64_rows,
                **asdict(one.figure),
            }
            for one in outcome.passes
        ],
        "worst": [
            {"event": one.event, "calls": one.calls, "total_ms": one.total_ms, "longest_ms": one.longest_ms}
            for one in outcome.worst
        ],
        "aims": [{**asdict(aim), "holds": aim.holds} for aim in aims(outcome)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _scene(scene: Scene) -> dict[str, Any]:
    figures = scene.tree | scene.queue
    memory = scene.memory
    return {
        "shape": scene.shape.name,
        "size": scene.shape.size,
        "nodes": scene.nodes,
        "times": {name: asdict(figure) for name, figure in figures.items() if figure is not None},
        "pick_over_small": pick_growth(scene),
        "textbook_over_pick": textbook_gain(scene),
        "memory": {
            **asdict(memory),
            "bytes_per_cached_token": memory.per_cached_token,
            "bytes_per_node": memory.per_node,
            "bytes_per_waiting_token": memory.per_waiting_token,
            "bytes_per_choice": memory.per_choice,
        },
        "full_collection_ms": scene.full_collection_ms,
    }


def _scenes(title: str, scenes: list[Scene], least: str) -> Table:
    """A column for each scene. least: how many wait in the small queue that picks are compared with."""
    table = _table(title, "", *(f"{scene.shape.name} {scene.shape.size:,}" for scene in scenes))
    table.add_row("nodes", *(f"{scene.nodes:,}" for scene in scenes), end_section=True)
    for part, rows in ((TREE_ROWS, [scene.tree for scene in scenes]), (QUEUE_ROWS, [scene.queue for scene in scenes])):
        for name, text in part.items():
            table.add_row(text, *(_figure(figures[name]) for figures in rows))
        table.add_section()
    table.add_row(f"a pick / one with {least}, in turn", *(_ratio(pick_growth(scene)) for scene in scenes))
    table.add_row("textbook / a pick", *(_ratio(textbook_gain(scene)) for scene in scenes), end_section=True)
    memories = [scene.memory for scene in scenes]
    table.add_row("tree: bytes per cached token", *(f"{one.per_cached_token:.1f}" for one in memories))
    table.add_row("tree: bytes per node", *(f"{one.per_node:,.0f}" for one in memories))
    table.add_row("queue: bytes per new token", *(f"{one.per_waiting_token:.1f}" for one in memories))
    table.add_row("queue: bytes per choice", *(f"{one.per_choice:,.0f}" for one in memories), end_section=True)
    collected = [[one for one in (scene.tree | scene.queue).values() if one is not None] for scene in scenes]
    table.add_row(
        "garbage collections, not in the times", *(f"{sum(one.collections for one in every):,}" for every in collected)
    )
    table.add_row(
        "longest of them, ms",
        *(f"{max((one.longest_collection_us for one in every), default=0.0) / 1e3:.1f}" for every in collected),
    )
    table.add_row("a full one would take, ms", *(f"{scene.full_collection_ms:.0f}" for scene in scenes))
    return table


def _passes(passes: list[Passes]) -> Table:
    headings = ("rows", "waiting", "load", "p50", "p99", "longest", "p50 per 64 rows", "longest collection")
    table = _table("a whole pass (result and decision), ms", *headings)
    for one in passes:
        figure = one.figure
        times = (figure.p50_us, figure.p99_us, figure.most_us)
        table.add_row(
            f"{one.rows}",
            f"{one.waiting:,}",
            one.load.value,
            *(f"{us / 1e3:.2f}" for us in times),
            f"{one.ms_per_64_rows:.2f}",
            f"{figure.longest_collection_us / 1e3:.1f}",
        )
    return table


def _worst(worst: list[Worst]) -> Table:
    table = _table("what concerns everybody at once", "event", "calls", "in all ms", "longest call ms")
    for one in worst:
        table.add_row(one.event, f"{one.calls:,}", f"{one.total_ms:,.0f}", f"{one.longest_ms:.1f}")
    return table


def _aims(outcome: RadixOutcome) -> Table:
    table = _table("aims", "", "measured", "aim", "holds")
    for aim in aims(outcome):
        bound = f"{'>=' if aim.least else '<='} {aim.limit:g} {aim.unit}"
        table.add_row(aim.text, f"{aim.value:,.2f} {aim.unit}", bound, "yes" if aim.holds else "NO")
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left")
    return table


def _figure(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.p50_us:,.1f} / {figure.p99_us:,.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
