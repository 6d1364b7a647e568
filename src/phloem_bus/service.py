"""The shape of a service: what it is given, and how it runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import anyio
from prometheus_client import CollectorRegistry

from phloem_proto.subjects import Role, slug

from .bus import Bus
from .metrics import NodeCollector
from .node import Node

T = TypeVar("T")


class Offload(Protocol):
    """Where blocking work runs: threads in production, inline with a seeded delay in the simulation."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


@dataclass(slots=True)
class ServiceContext:
    """Everything a service gets from outside."""

    bus: Bus
    role: Role
    instance: str
    incarnation: int
    namespace: str
    model: str
    """Served model's name as users know it (not yet a subject token)."""
    rng: random.Random
    offload: Offload
    drain: anyio.Event
    """Set when the service is to finish or hand back its work and return (SIGTERM)."""
    drain_s: float = 25.0
    """How long a drain may take."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    ready: Callable[[bool], None] = lambda _: None
    """To be called when readiness changes (probe file, supervisor)."""

    def node(self) -> Node:
        """This service's place on the bus. Its counters go to ``registry``; call it once."""
        node = Node(
            self.bus,
            role=self.role,
            instance=self.instance,
            incarnation=self.incarnation,
            namespace=self.namespace,
            model=slug(self.model),
            rng=self.rng,
        )
        self.registry.register(NodeCollector(node))
        return node


class Service(Protocol):
    """One of the five. Built from its config; run once."""

    @property
    def role(self) -> Role: ...

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until ``ctx.drain`` is set and everything is finished or handed back; also ends when cancelled.

        Says Goodbye before it returns.
        """
        ...
