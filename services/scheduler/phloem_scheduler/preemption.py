"""Rows of low priority give way to a waiting choice of much higher priority that finds no room."""

from __future__ import annotations

from .admission import Admission
from .requests import Choice
from .reserve import Reserve
from .rows import Row
from .worker import WorkerState


def victims(worker: WorkerState, choice: Choice, admission: Admission, threshold: int) -> list[Row]:
    """Rows whose retraction lets choice in on worker; none if it fits anyway, or if all that may go would not be enough.

    A row may go if its priority is lower by more than `threshold`: lowest priority first, of those the last that came.
    """
    assert choice.node is not None
    cached = worker.cache.cached(choice.node)
    if admission.fits(worker, choice, cached):
        return []
    lacking = admission.shortage(worker, choice, cached)
    chosen: list[Row] = []
    for row in sorted(_may_go(worker, choice.request.priority - threshold), key=_rank):
        chosen.append(row)
        lacking -= gain(row, admission.reserve)
        if lacking <= 0:
            return chosen
    return []


def gain(row: Row, reserve: Reserve) -> float:
    """Tokens of room that its retraction gives at least: what only it holds or has locked, and what is set aside for it."""
    pages, step, shelf = len(row.table) - row.tree_pages, row.node, row.worker.cache.shelf
    while step.parent is not None and step.copies[shelf].locks == 1:
        pages += len(step.copies[shelf].pages)
        step = step.parent
    return pages * row.worker.cache.page_size + reserve.of(row)


def _may_go(worker: WorkerState, below: int) -> list[Row]:
    """Rows of lower priority than that which go on: who has its last draw planned is left to finish."""
    return [
        row for row in worker.rows.values() if row.choice.request.priority < below and (row.extending or row.quota > 0)
    ]


def _rank(row: Row) -> tuple[int, float, int]:
    request = row.choice.request
    return request.priority, -request.arrival, -request.number
