"""Matchers and a place for work that the test controls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from phloem_gpu_worker.errors import GrammarError
from phloem_gpu_worker.matchers import Bits
from phloem_proto.messages import Grammar

T = TypeVar("T")


class Scripted:
    """A matcher that allows one token after the other and ends after the last."""

    def __init__(self, ids: list[int], on_fill: Callable[[], None] = lambda: None) -> None:
        self._ids = list(ids)
        self._on_fill = on_fill

    @property
    def ended(self) -> bool:
        return not self._ids

    def fill(self, bits: Bits) -> None:
        self._on_fill()
        bits.fill(0)
        word, bit = divmod(self._ids[0], 32)
        bits.view("uint32")[word] = 1 << bit

    def accept(self, ids: list[int]) -> None:
        for token in ids:
            if token != self._ids.pop(0):
                raise GrammarError("not that one")


class Later:
    """A `Submit` whose work is done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], T], /) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(work())

        self.jobs.append(run)
        return future

    def do_all(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


ANY = Grammar("d", "scripted", "regex", "")
