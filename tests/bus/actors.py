"""Small services on a local bus, driven on trio with a clock that jumps."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import anyio
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from phloem_bus.bus import Bus
from phloem_bus.link import Links
from phloem_bus.local import LocalBroker, LocalBus
from phloem_bus.node import Node
from phloem_bus.presence import Presence
from phloem_proto import messages
from phloem_proto.messages import Load, Profile
from phloem_proto.subjects import Role

_FLAG = "_ALLOW_DETERMINISTIC_SCHEDULING"
"""trio's own hook for reproducible schedules; private, so looked up by name."""

INBOXES: dict[Role, Any] = {
    Role.GATEWAY: messages.GatewayInbox,
    Role.TOKENIZER: messages.TokenizerInbox,
    Role.SCHEDULER: messages.SchedulerInbox,
    Role.WORKER: messages.WorkerInbox,
    Role.GRAMMAR: messages.GrammarInbox,
}


def drive(test: Callable[[MockClock], Awaitable[None]], *, seed: int = 0) -> None:
    """Run ``test`` on trio in virtual time; the schedule is a function of ``seed``."""
    clock = MockClock(autojump_threshold=0)
    before = getattr(trio_run, _FLAG)
    setattr(trio_run, _FLAG, True)
    trio_run._r.seed(seed)

    async def main() -> None:
        with trio.fail_after(600):
            await test(clock)

    try:
        trio.run(main, clock=clock)
    finally:
        setattr(trio_run, _FLAG, before)


class Actor:
    """A node with presence and links, as a service has them.

    Args:
        broker: or a bus that is connected already.
        tells: roles it beats to and watches.
        incarnation: also the seed of its jitter.
    """

    def __init__(
        self,
        broker: LocalBroker | Bus,
        role: Role,
        instance: str,
        tells: Collection[Role],
        *,
        incarnation: int = 1,
        profile: Profile | None = None,
        term: Callable[[], int] = lambda: 0,
    ) -> None:
        self.bus = broker.connect(instance) if isinstance(broker, LocalBroker) else broker
        self.role = role
        self.profile = profile or Profile("m")
        self.load = Load()
        self.node = Node(
            self.bus,
            role=role,
            instance=instance,
            incarnation=incarnation,
            namespace="d",
            model="m",
            rng=random.Random(incarnation),
        )
        self.presence = Presence(
            self.node, tells=tells, watches=tells, profile=lambda: self.profile, load=lambda: self.load, term=term
        )
        self.links = Links(self.node, self.presence)
        self.news: list[tuple[str, str]] = []
        self.scope = anyio.CancelScope()
        for watched in sorted(tells):
            self.presence.on_join(watched, lambda peer: self.news.append(("join", peer.instance)))
            self.presence.on_change(watched, lambda peer: self.news.append((peer.state, peer.instance)))
            self.presence.on_gone(watched, lambda peer: self.news.append(("gone", peer.instance)))

    async def start(self, tasks: anyio.abc.TaskGroup, state: str = "ready") -> Actor:
        """Run it in ``tasks``; listening already when this returns."""
        await tasks.start(self._run)
        self.presence.set_state(state)
        return self

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.node.run, INBOXES[self.role])
                tasks.start_soon(self.presence.run)
                tasks.start_soon(self.links.run)
                task_status.started()

    def kill(self) -> None:
        """End like a process that was killed: no goodbye, no last word."""
        assert isinstance(self.bus, LocalBus)
        self.bus.kill()
        self.scope.cancel()
