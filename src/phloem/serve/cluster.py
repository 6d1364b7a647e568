"""Several services in one event loop, joined by a `LocalBus`: the same classes that run as processes over NATS."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence

import anyio
from prometheus_client import CollectorRegistry

from phloem_bus.local import LocalBroker
from phloem_bus.process import Threads
from phloem_bus.service import Offload, Service, ServiceContext
from phloem_proto.subjects import Role

DRAIN_ORDER = ((Role.GATEWAY,), (Role.SCHEDULER, Role.TOKENIZER), (Role.WORKER, Role.GRAMMAR))
"""From the edge inwards: a service drains once nobody sends it work any more."""


class ServiceEnded(Exception):
    """Raised when a service returns although nobody told it to stop."""

    def __init__(self, role: Role) -> None:
        super().__init__(f"the {role} service ended without being told to")
        self.role = role


class Cluster:
    """Runs ``services`` until drained.

    Args:
        services: each is run once; several of a role are fine.
        model: the served model's name.
        namespace: on the bus.
        drain_s: seconds each service may take to drain.
        seed: of incarnations and jitter; None draws one.
        offload: where blocking work runs; default: worker threads.
        on_ready: called when the gateway's readiness changes.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        model: str,
        namespace: str = "default",
        drain_s: float = 25.0,
        seed: int | None = None,
        offload: Offload | None = None,
        on_ready: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.broker = LocalBroker()
        self._services = list(services)
        self._model = model
        self._namespace = namespace
        self._drain_s = drain_s
        self._rng = random.Random(secrets.randbits(64) if seed is None else seed)
        self._offload = offload
        self._on_ready = on_ready

    async def run(self, drain: anyio.Event) -> None:
        """Serve until ``drain`` is set and everything is finished, or until cancelled.

        Raises:
            ExceptionGroup: what a service raised, or `ServiceEnded`; the others were cancelled.
        """
        offload = self._offload or Threads()
        contexts = [self._context(service, index, offload) for index, service in enumerate(self._services)]
        done = [anyio.Event() for _ in contexts]
        async with anyio.create_task_group() as tasks:
            for service, context, end in zip(self._services, contexts, done, strict=True):
                tasks.start_soon(self._serve, service, context, end)
            await drain.wait()
            for roles in DRAIN_ORDER:
                wave = [(c, end) for c, end in zip(contexts, done, strict=True) if c.role in roles]
                for context, _ in wave:
                    context.drain.set()
                for _, end in wave:
                    await end.wait()

    @staticmethod
    async def _serve(service: Service, context: ServiceContext, end: anyio.Event) -> None:
        try:
            await service.run(context)
        finally:
            await context.bus.aclose()
        if not context.drain.is_set():
            raise ServiceEnded(service.role)
        end.set()

    def _context(self, service: Service, index: int, offload: Offload) -> ServiceContext:
        instance = f"{service.role}-{index}"
        incarnation = self._rng.getrandbits(63)
        return ServiceContext(
            bus=self.broker.connect(instance),
            role=service.role,
            instance=instance,
            incarnation=incarnation,
            namespace=self._namespace,
            model=self._model,
            rng=random.Random(incarnation),
            offload=offload,
            drain=anyio.Event(),
            drain_s=self._drain_s,
            registry=CollectorRegistry(),
            ready=self._on_ready if service.role is Role.GATEWAY else lambda _: None,
        )
