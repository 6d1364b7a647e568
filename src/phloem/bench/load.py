"""The load generator: sends a workload in an open loop (at given times) or a closed loop (so many at once), and watches itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from .http1 import Client
from .openai_api import Api, perform
from .record import Record
from .stats import Lag, lag
from .workload import Item

MAX_IN_FLIGHT = 1000
"""Most requests in flight, also in an open loop: below the usual limit of 1,024 open files."""
TICK_S = 0.01
KEPT_TICKS = 100_000
"""Overshoots kept: a quarter of an hour; later ones replace the oldest."""


class Run:
    """One run of a workload against one server.

    Args:
        client, api: where and how to send.
        items: the workload; with ``at_s`` (all or none) it is an open loop.
        concurrency: most requests in flight, 1..`MAX_IN_FLIGHT`.
        on_done: called after each request.
    """

    def __init__(
        self,
        client: Client,
        api: Api,
        items: Sequence[Item],
        *,
        concurrency: int,
        on_done: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self._client, self._api, self._items = client, api, items
        self._places = anyio.CapacityLimiter(min(concurrency, MAX_IN_FLIGHT))
        self._on_done = on_done
        self._ticks: list[float] = []
        self._start = 0.0
        self.records: list[Record] = []

    async def run(self) -> Lag:
        """Send everything, wait for all replies; `records` then holds one per item, in order. Returns the generator's own lag."""
        self.records = [Record(index, planned_s=item.at_s) for index, item in enumerate(self._items)]
        self._start = anyio.current_time()
        cpu, wall = time.process_time(), time.perf_counter()
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch)
            async with anyio.create_task_group() as sending:
                await self._send_all(sending)
            watching.cancel_scope.cancel()
        return lag(self._ticks, self.records, time.process_time() - cpu, time.perf_counter() - wall)

    def _now(self) -> float:
        return anyio.current_time() - self._start

    async def _send_all(self, sending: TaskGroup) -> None:
        for item, record in zip(self._items, self.records, strict=True):
            if item.at_s is not None:
                await anyio.sleep_until(self._start + item.at_s)
            await self._places.acquire_on_behalf_of(record.index)
            sending.start_soon(self._one, item, record)

    async def _one(self, item: Item, record: Record) -> None:
        try:
            await perform(self._client, self._api, item, record, self._now)
        finally:
            self._places.release_on_behalf_of(record.index)
        self._on_done(record)

    async def _watch(self) -> None:
        """Sleep and see by how much it was late: that is what arrival times can be wrong by."""
        count = 0
        while True:
            due = anyio.current_time() + TICK_S
            await anyio.sleep_until(due)
            late = anyio.current_time() - due
            if len(self._ticks) < KEPT_TICKS:
                self._ticks.append(late)
            else:
                self._ticks[count % KEPT_TICKS] = late
            count += 1
