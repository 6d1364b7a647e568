"""A service as a process of its own: it can be started, told to drain, killed, stalled, and started again under a new incarnation."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
from prometheus_client import CollectorRegistry

from phloem_bus.local import LocalBus
from phloem_bus.service import Service, ServiceContext

from .bus import SimBroker
from .trace import Trace

T = TypeVar("T")

DRAIN_S = 10.0


class Process:
    """One place in the deployment and whatever runs there now.

    Args:
        name: what faults and the trace call it; also the name of its connection.
        make: a new service for each start.
        work_s: (least, most) simulated seconds that a piece of blocking work takes.
        complain: told what should not have happened.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        broker: SimBroker,
        trace: Trace,
        rng: random.Random,
        work_s: tuple[float, float],
        new_names: bool,
        complain: Callable[[str], None],
    ) -> None:
        self.name = name
        self.starts = 0
        self.service: Any = None
        self.context: ServiceContext | None = None
        self.stalled_until = 0.0
        self.ended = anyio.Event()
        """Set while nothing runs here."""
        self.ended.set()
        self.gone = anyio.Event()
        """Set when what runs here is killed, or has ended: connections to it break."""
        self._make = make
        self._broker = broker
        self._trace = trace
        self._rng = rng
        self._work_s = work_s
        self._new_names = new_names
        self._complain = complain
        self._scope = anyio.CancelScope()
        self._bus: LocalBus | None = None
        self._killed = False
        self._drain_since: float | None = None

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    @property
    def draining_long(self) -> bool:
        """Whether the time to finish calls is over: the rest ends with an error."""
        return self._drain_since is not None and anyio.current_time() - self._drain_since >= DRAIN_S

    async def run(self) -> None:
        """Start and run until it ends, by whatever cause."""
        self.ended, self.gone, self._drain_since = anyio.Event(), anyio.Event(), None
        self._scope, self._killed = anyio.CancelScope(), False
        service: Service = self._make()
        self.service = service
        bus = self._bus = self._broker.connect(self.name)
        incarnation = self._rng.getrandbits(63)
        instance = f"{self.name}-{self.starts}" if self._new_names else self.name
        self.starts += 1
        context = self.context = ServiceContext(
            bus=bus, role=service.role, instance=instance, incarnation=incarnation, namespace="sim", model="tiny",
            rng=random.Random(incarnation), offload=self._offload, drain=anyio.Event(), drain_s=DRAIN_S,
            registry=CollectorRegistry(),
        )  # fmt: skip
        self._trace.note(self.name, f"starts as {instance}")
        try:
            with self._scope:
                try:
                    await service.run(context)
                except Exception as error:
                    self._complain(f"{self.name} failed: {_told(error)}")
                finally:
                    with anyio.CancelScope(shield=True):
                        await bus.aclose()
            if not self._killed and not context.drain.is_set():
                self._complain(f"{self.name} ended without being told to")
        finally:
            self._trace.note(self.name, "ended")
            self.gone.set()
            self.ended.set()

    def kill(self) -> None:
        """End at once, as kill -9 does."""
        if self.running and self._bus is not None:
            self._trace.note(self.name, "is killed")
            self._killed = True
            self._bus.kill()
            self.gone.set()
            self._scope.cancel()

    def drain(self) -> None:
        """SIGTERM."""
        if self.running and self.context is not None:
            self._trace.note(self.name, "is told to drain")
            self._drain_since = anyio.current_time()
            self.context.drain.set()

    def stall(self, seconds: float) -> None:
        """Blocking work (steps, compiles) comes to nothing for so long."""
        self.stalled_until = anyio.current_time() + seconds

    async def _offload(self, work: Callable[[], T]) -> T:
        await anyio.sleep(self._rng.uniform(*self._work_s))
        await anyio.sleep_until(self.stalled_until)
        return work()


def _told(error: BaseException) -> str:
    """An exception, and what a group holds."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
