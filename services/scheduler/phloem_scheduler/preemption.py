"""Rows of low priority give way to a waiting choice of much higher priority that finds no room."""

from __future__ import annotations

from .admission import Admission
from .node import Node
from .requests import Choice
from .reserve import Reserve
from .rows import Row
from .worker import WorkerState


def victims(worker: WorkerState, choice: Choice, admission: Admission, threshold: int) -> list[Row]:
    """Rows whose retraction lets choice in on worker, where it does not fit; none if all that may go would not be enough.

    A row may go if its priority is lower by more than `threshold`: lowest priority first, of those the last that came.
    """
    assert choice.node is not None
    cached = worker.cache.cached(choice.node)
    lacking = admission.shortage(worker, choice, cached)
    freed = Freed(worker, cached, admission.reserve)
    chosen: list[Row] = []
    for row in sorted(may_go(worker, choice, threshold), key=_rank):
        chosen.append(row)
        freed.add(row)
        if freed.tokens >= lacking:
            return chosen
    # Where nobody is left to run, a choice needs no room for its output.
    alone = len(chosen) == len(worker.rows) and admission.shortage_alone(worker, choice, cached, freed.pages) <= 0
    return chosen if alone else []


class Freed:
    """What the retraction of some rows gives to a choice that has `cached` of its path on the worker."""

    def __init__(self, worker: WorkerState, cached: Node, reserve: Reserve) -> None:
        self.pages = 0
        self._reserved = 0.0
        self._worker = worker
        self._reserve = reserve
        self._unlocked: dict[Node, int] = {}  # locks that are gone with the rows
        self._spared: dict[Node, None] = {}  # the choice locks these itself: no room for anything else
        while cached.parent is not None:
            self._spared[cached] = None
            cached = cached.parent

    @property
    def tokens(self) -> float:
        """Of room for known tokens and output."""
        return self.pages * self._worker.cache.page_size + self._reserved

    def add(self, row: Row) -> None:
        """row goes too: its own pages, those in the tree that only it and the others had locked, and what is set aside for it."""
        self.pages += len(row.table) - row.tree_pages
        self._reserved += self._reserve.of(row)
        step = row.node
        while step.parent is not None:
            gone = self._unlocked[step] = self._unlocked.get(step, 0) + 1
            copy = step.copies[self._worker.cache.shelf]
            if gone == copy.locks and step not in self._spared:
                self.pages += len(copy.pages)
            step = step.parent


def may_go(worker: WorkerState, choice: Choice, threshold: int) -> list[Row]:
    """Rows of so much lower priority that go on: who has its last draw planned is left to finish."""
    below = choice.request.priority - threshold
    return [
        row for row in worker.rows.values() if row.choice.request.priority < below and (row.extending or row.quota > 0)
    ]


def _rank(row: Row) -> tuple[int, float, int]:
    request = row.choice.request
    return request.priority, -request.arrival, -request.number
