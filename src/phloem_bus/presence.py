"""Who is there: beats out, peers in, and calls to the least busy of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from phloem_proto import subjects
from phloem_proto.messages import Beat, Goodbye, Load, Message, Probe, ProbeReply, Profile
from phloem_proto.subjects import Role

from .errors import BusError, Disconnected, NoPeer, NoResponders, PayloadTooLarge, TimedOut
from .node import Node, Received
from .patience import TICK_S, Patience
from .peers import BEAT_S, GONE_S, PROBE_S, SUSPECT_S, Peer, PeerTable
from .told import STATES, believable

R = TypeVar("R", bound=Message)

__all__ = ["BEAT_S", "GONE_S", "SUSPECT_S", "Peer", "Presence"]

_log = logging.getLogger("phloem.bus")

_PROBES = 256
"""Probes served at once: more than anybody's peers; beyond that the answer is given all the same."""


class Presence:
    """Beats for us and a table of peers.

    Fast death: Goodbye, a new incarnation, or no-responders on the peer's subject for 0.5 s. Slow death: 0.75 s of silence = suspect (no new
    work), 1.5 s and an unanswered Probe = gone. No such clock runs while our own bus is down, for 3 s after it returns, or over time
    that our own loop stalled.

    Args:
        tells: roles that get our beats.
        watches: roles whose beats we follow.
        profile, load, term: called at each beat.
    """

    def __init__(
        self,
        node: Node,
        *,
        tells: Collection[Role],
        watches: Collection[Role],
        profile: Callable[[], Profile],
        load: Callable[[], Load] = Load,
        term: Callable[[], int] = lambda: 0,
    ) -> None:
        self.node = node
        self.state = "starting"
        self.term = term
        self.patience = Patience(anyio.current_time())
        self._tells = sorted(tells)
        self._profile = profile
        self._load = load
        self._table = PeerTable(watches)
        self._joined: dict[Role, list[Callable[[Peer], None]]] = {}
        self._changed: dict[Role, list[Callable[[Peer], None]]] = {}
        self._gone: dict[Role, list[Callable[[Peer], None]]] = {}
        self._beat_now = anyio.Event()
        self._left = False
        node.on(Beat, self._on_beat)
        node.on(Goodbye, self._on_goodbye)
        node.serve(Probe, self._on_probe, limit=_PROBES, busy=lambda _: ProbeReply(self.state))

    def set_state(self, state: str) -> None:
        """``starting`` | ``ready`` | ``draining``; told to peers at once."""
        if state not in STATES:
            raise ValueError(f"not a state: {state!r}")
        self.state = state
        self._beat_now.set()

    @property
    def watched(self) -> list[Role]:
        """The roles whose beats are followed, sorted."""
        return self._table.roles

    def peers(self, role: Role) -> list[Peer]:
        """Those of ``role`` that are present, in order of instance. Raises ``KeyError`` for a role that isn't watched."""
        return self._table.of(role)

    def get(self, role: Role, instance: str) -> Peer | None:
        return self._table.get(role, instance)

    def choose(self, role: Role, *, exclude: Collection[str] = ()) -> Peer | None:
        """The ready, unsuspected peer with the fewest of our calls in flight (then by its own load, then in rotation)."""
        return self._table.choose(role, exclude)

    def on_join(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` when a peer appears or changes its incarnation (after its `on_gone`). Never blocks."""
        self._joined.setdefault(role, []).append(handler)

    def on_change(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` when a peer's state, term or profile changes."""
        self._changed.setdefault(role, []).append(handler)

    def on_gone(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` once when a peer is gone."""
        self._gone.setdefault(role, []).append(handler)

    async def call(
        self,
        role: Role,
        message: Message,
        reply: type[R],
        *,
        timeout: float,
        busy: Callable[[R], bool] = lambda _: False,
        patience: float = 1.0,
    ) -> tuple[R, Peer]:
        """Call the instance that `choose` gives; ``busy``, no responder, or no answer within ``patience`` s: once more elsewhere.

        Returns the reply and who gave it; that may be a ``busy`` one, if the second try gave it or there is no other instance. With a
        single instance present, the first call is waited for until ``timeout``.

        Raises:
            NoPeer: no ready instance is present.
            TimedOut, Disconnected, PayloadTooLarge, NoResponders: as `Node.call`, after the second try.
        """
        deadline = anyio.current_time() + timeout
        first = self.choose(role)
        if first is None:
            raise NoPeer(f"no {role} is ready")
        alone = not self._table.usable(role, exclude=(first.instance,))
        failure: BusError
        answer: R | None = None
        try:
            answer = await self._call(first, message, reply, timeout if alone else min(patience, timeout))
            if not busy(answer):
                return answer, first
        except (NoResponders, TimedOut) as error:
            failure = error
        second = self.choose(role, exclude=(first.instance,))
        left = deadline - anyio.current_time()
        if second is not None and left > 0:
            return await self._call(second, message, reply, left), second
        if answer is not None:
            return answer, first
        raise failure

    async def run(self) -> None:
        """Beat and watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            tasks.start_soon(self._watch, tasks)

    async def goodbye(self) -> None:
        """Tell everybody that we leave. Never raises for a bus that is down."""
        self._left = True
        try:
            for role in self._tells:
                await self.node.send(role, subjects.ALL, Goodbye())
            with anyio.move_on_after(1.0):
                await self.node.bus.flush()
        except Disconnected:
            _log.info("no connection to say goodbye")

    async def _call(self, peer: Peer, message: Message, reply: type[R], timeout: float) -> R:
        peer.in_flight += 1
        try:
            return await self.node.call(peer.role, peer.instance, message, reply, timeout=timeout)
        except NoResponders:
            self._table.unreachable(peer, self.patience.elapsed)
            raise
        finally:
            peer.in_flight -= 1

    async def _beat(self) -> None:
        number = 0
        while not self._left:
            self._beat_now = anyio.Event()
            number += 1
            beat = Beat(self.state, self._profile(), self._load(), self.term(), number)
            try:
                for role in self._tells:
                    await self.node.send(role, subjects.ALL, beat)
            except Disconnected:
                pass  # silence is what a lost connection looks like
            except PayloadTooLarge as error:
                _log.error("a beat can't be sent: %s", error)
            with anyio.move_on_after(BEAT_S * self.node.rng.uniform(0.9, 1.1)):
                await self._beat_now.wait()

    async def _watch(self, tasks: TaskGroup) -> None:
        while True:
            await anyio.sleep(TICK_S)
            bus = self.node.bus
            self.patience.advance(anyio.current_time(), connected=bus.connected, connected_since=bus.connected_since)
            dead, doubtful = self._table.tick(self.patience.elapsed)
            for peer in dead:
                self._remove(peer, "is not answering")
            for peer in doubtful:
                peer.probing = True
                tasks.start_soon(self._probe, peer)

    async def _probe(self, peer: Peer) -> None:
        """Ask a silent peer; what comes of it decides with the next ticks."""
        asked = self.patience.elapsed
        try:
            reply = await self.node.call(peer.role, peer.instance, Probe(), ProbeReply, timeout=PROBE_S)
        except NoResponders:
            self._table.unreachable(peer, self.patience.elapsed)
        except TimedOut:
            self._table.unanswered(peer, asked, self.patience.elapsed)
        except BusError:
            pass  # our own connection, or a reply we can't read: neither says anything of the peer
        else:
            self._table.answered(peer, self.patience.elapsed)
            if reply.state != peer.state and reply.state in STATES:
                peer.state = reply.state
                self._notify(self._changed, peer)
        finally:
            peer.probing = False

    async def _on_probe(self, _: Received[Probe]) -> ProbeReply:
        return ProbeReply(self.state)

    def _on_beat(self, received: Received[Beat]) -> None:
        sender = received.sender
        if sender == self.node.sender or not self._table.watches(sender.role):
            return
        if not believable(sender.role, received.message):
            self.node.refuse("malformed")
            return
        news = self._table.heard(sender, received.message, anyio.current_time(), self.patience.elapsed)
        if news.refused:
            self.node.refuse(news.refused)
        if news.gone is not None:
            _log.info("%s %s restarted", sender.role, sender.instance)
            self._notify(self._gone, news.gone)
        if news.joined is not None:
            _log.info("%s %s is here", sender.role, sender.instance)
            self._notify(self._joined, news.joined)
        if news.changed is not None:
            self._notify(self._changed, news.changed)

    def _on_goodbye(self, received: Received[Goodbye]) -> None:
        sender = received.sender
        if not self._table.watches(sender.role):
            return
        peer = self._table.left(sender)
        if peer is None:
            self.node.refuse("stale")
        else:
            _log.info("%s %s left", peer.role, peer.instance)
            self._notify(self._gone, peer)

    def _remove(self, peer: Peer, why: str) -> None:
        if self._table.remove(peer):
            _log.warning("%s %s %s", peer.role, peer.instance, why)
            self._notify(self._gone, peer)

    def _notify(self, handlers: dict[Role, list[Callable[[Peer], None]]], peer: Peer) -> None:
        for handler in handlers.get(peer.role, ()):
            try:
                handler(peer)
            except Exception:
                self.node.refuse("failed")
                _log.exception("handling news of %s %s failed", peer.role, peer.instance)
