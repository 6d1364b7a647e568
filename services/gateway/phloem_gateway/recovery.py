"""Requests that were lost, in the order in which they are opened again, and so many at a time."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from .live import Live

CREDIT_BYTES = 16 << 20
"""Of prompts and outputs on their way to a scheduler at once: a new leader is not buried under all that there is."""


class Recovery:
    """Opens again what is added: first what a client has seen begin (it sees a pause now), then by age.

    Args:
        open_again: opens one, at most until a time in seconds, or ends it.
        patience_s: how long each may take from when it was lost.
        on_done: called when all is opened again.
    """

    def __init__(
        self, open_again: Callable[[Live, float], Awaitable[None]], patience_s: float, on_done: Callable[[], None]
    ) -> None:
        self._open_again = open_again
        self._patience_s = patience_s
        self._on_done = on_done
        self._waiting: list[tuple[bool, float, bytes, float, Live]] = []
        self._in_flight = 0
        self._bytes = 0
        self._came = anyio.Event()

    @property
    def idle(self) -> bool:
        """Whether nothing is lost just now."""
        return not self._waiting and not self._in_flight

    def add(self, lives: Iterable[Live]) -> None:
        """These are lost."""
        until = anyio.current_time() + self._patience_s
        for live in lives:
            heapq.heappush(self._waiting, (live.first_token is None, live.arrival, live.rid, until, live))
        self._came.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._came = anyio.Event()
                while self._waiting and (
                    not self._in_flight or self._bytes + self._waiting[0][4].held_bytes <= CREDIT_BYTES
                ):
                    *_, until, live = heapq.heappop(self._waiting)
                    self._start(tasks, live, until)
                await self._came.wait()

    def _start(self, tasks: TaskGroup, live: Live, until: float) -> None:
        size = live.held_bytes
        self._in_flight += 1
        self._bytes += size
        tasks.start_soon(self._one, live, until, size)

    async def _one(self, live: Live, until: float, size: int) -> None:
        try:
            await self._open_again(live, until)
        finally:
            self._in_flight -= 1
            self._bytes -= size
            self._came.set()
            if self.idle:
                self._on_done()
