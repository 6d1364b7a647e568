"""The scheduler as a service: who leads, readiness, drain."""

from __future__ import annotations

import logging

import anyio

from phloem_bus.garbage import collect_when_idle
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_proto.messages import Load, SchedulerInbox
from phloem_proto.subjects import Role

from .config import SchedulerConfig
from .core import Core
from .desk import Desk
from .leadership import Claim, Leadership
from .load import CoreCollector, load

LISTEN_S = 1.0
"""A leader beats four times a second: who has heard none for this long at its start is alone, or comes after one that is gone."""
APART_S = 0.25
"""Schedulers that start together wait up to so much longer, each by chance, so that one of them is heard first."""
WATCH_S = 0.1
"""How often other schedulers' terms are looked at."""
GOODBYE_S = 1.0
COLLECT_S = 3600.0
"""Between full garbage collections while requests always are live: one may take half a second with a hundred thousand of them."""

_log = logging.getLogger("phloem.scheduler")


class SchedulerService:
    """See `phloem_bus.service.Service`.

    Args:
        alone: it has the process to itself, and so decides when garbage is collected.
    """

    role = Role.SCHEDULER

    def __init__(self, config: SchedulerConfig | None = None, alone: bool = False) -> None:
        self.config = config or SchedulerConfig()
        self._alone = alone
        self._desk: Desk | None = None

    @property
    def core(self) -> Core:
        """The core at work; it is replaced when another scheduler takes the lead. Only while running."""
        assert self._desk is not None
        return self._desk.core

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until drained or cancelled."""
        node = ctx.node()
        leadership = Leadership(ctx.instance)
        peers = (Role.GATEWAY, Role.TOKENIZER, Role.WORKER, Role.GRAMMAR, Role.SCHEDULER)
        presence = Presence(
            node,
            tells=peers,
            watches=peers,
            profile=lambda: desk.profile(),
            load=lambda: describe(desk, presence),
            term=lambda: leadership.number,
        )
        desk = self._desk = Desk(self.config, node, presence, leadership, ctx.model)
        ctx.registry.register(CoreCollector(lambda: desk.core))
        ctx.registry.register(desk.passes)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(node.run, SchedulerInbox)
                for background in (presence.run, desk.links.run, desk.answers.run):
                    tasks.start_soon(background)
                if self._alone:
                    tasks.start_soon(collect_when_idle, lambda: desk.core.idle, COLLECT_S)
                tasks.start_soon(alternate, desk, presence, leadership, ctx)
                await ctx.drain.wait()
                await drain(desk, presence, ctx)
                await leave(presence)
                tasks.cancel_scope.cancel()
        finally:
            await leave(presence)


async def alternate(desk: Desk, presence: Presence, leadership: Leadership, ctx: ServiceContext) -> None:
    """Stand by while another scheduler leads; lead while none does. A standby is ready too: ready to take over."""
    await anyio.sleep(LISTEN_S + ctx.rng.uniform(0, APART_S))
    ctx.ready(True)
    while not ctx.drain.is_set():
        while others := leaders(presence):
            leadership.sees(others, has_workers=False)
            await anyio.sleep(WATCH_S)
        _log.info("leading with term %d", leadership.take())
        await lead(desk, presence, leadership)
        presence.set_state("starting")
        _log.warning("another scheduler leads: standing by")


async def lead(desk: Desk, presence: Presence, leadership: Leadership) -> None:
    """Lead until another scheduler is seen whose claim is greater."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        presence.set_state("ready")
        while leadership.number:
            await anyio.sleep(WATCH_S)
            leadership.sees(leaders(presence), has_workers=bool(desk.core.workers))
        tasks.cancel_scope.cancel()


async def drain(desk: Desk, presence: Presence, ctx: ServiceContext) -> None:
    """Not ready first; then a standby, if there is one, takes over at once what is going on, or what is going on is finished.

    Gateways open with the next leader what is not finished: they hold all that it takes.
    """
    ctx.ready(False)
    presence.set_state("draining")
    desk.core.drain()
    with anyio.move_on_after(ctx.drain_s):
        while desk.core.life.live and not standbys(presence):
            with anyio.move_on_after(WATCH_S):
                await desk.finished()


async def leave(presence: Presence) -> None:
    """Say goodbye even when cancelled."""
    with anyio.move_on_after(GOODBYE_S, shield=True):
        await presence.goodbye()


def leaders(presence: Presence) -> list[Claim]:
    """Other schedulers that lead, as far as they can be seen."""
    peers = presence.peers(Role.SCHEDULER)
    return [Claim(peer.load.workers > 0, peer.term, peer.instance) for peer in peers if peer.term > 0]


def standbys(presence: Presence) -> bool:
    """Whether another scheduler is there to take over."""
    return any(peer.state != "draining" and not peer.suspect for peer in presence.peers(Role.SCHEDULER))


def describe(desk: Desk, presence: Presence) -> Load:
    """The load that a beat carries."""
    grammars = presence.peers(Role.GRAMMAR)
    below = [peer.load.counters for peer in (*presence.peers(Role.WORKER), *grammars)]
    return load(desk.core, len(presence.peers(Role.GATEWAY)), len(grammars), [desk.passes.counters(), *below])
