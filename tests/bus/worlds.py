"""A kind of bus and an event loop to run a test on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from phloem_bus.bus import Bus
from phloem_bus.local import LocalBroker
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions

Connect = Callable[[], Awaitable[Bus]]


class World:
    """Runs a test's coroutine with a function that connects to one broker; all connections are closed afterwards.

    Args:
        backend: ``asyncio`` or ``trio``.
        url: of a NATS server; None = a new `LocalBroker` per run.
    """

    max_payload = 8 * 1024 * 1024

    def __init__(self, backend: str, url: str | None = None) -> None:
        self._backend = backend
        self._url = url

    def run(self, test: Callable[[Connect], Awaitable[None]]) -> None:
        anyio.run(self._main, test, backend=self._backend)

    async def _main(self, test: Callable[[Connect], Awaitable[Any]]) -> None:
        buses: list[Bus] = []
        broker = LocalBroker(max_payload=self.max_payload)

        async def connect() -> Bus:
            bus: Bus = broker.connect() if self._url is None else await NatsBus.connect(NatsOptions(self._url))
            buses.append(bus)
            return bus

        try:
            with anyio.fail_after(30):
                await test(connect)
        finally:
            for bus in buses:
                await bus.aclose()
