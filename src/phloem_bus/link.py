"""Links: ordered, reliable, one per pair. Retransmission is here; services see messages once and in order, or `on_gone`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup

from phloem_proto.codec import PROTOCOL_MAX, PROTOCOL_MIN, Sender
from phloem_proto.messages import ErrorInfo, Hello, HelloReply, LinkFrame, Profile
from phloem_proto.subjects import Role

from .errors import Disconnected, HelloRefused
from .handshake import check_hello, mismatch
from .link_end import Link, Owner
from .node import Node, Received
from .peers import LEFT
from .presence import Peer, Presence

__all__ = ["Link", "Links"]

_log = logging.getLogger("phloem.bus")

_HELLOS = 256
"""Hellos waited for at once: more than any service's peers."""
_LINKS = 1024
"""Links open at once: as many as connections to the broker."""
_SESSIONS = 4096
"""Hellos remembered, so that none opens a link twice: hours of restarts. The oldest are forgotten."""
_RESETS = 256
"""Resets under way at once; a stale peer asks again within a second."""

_Key = tuple[Role, str]


@dataclass(slots=True)
class _Accepts:
    """How Hellos of one role are answered."""

    owner: Owner
    profile: Callable[[], Profile]
    admit: Callable[[Received[Hello]], Awaitable[ErrorInfo | None]]
    one_at_a_time: anyio.Lock


class Links:
    """All links of a service. Its `run` must run beside the node's."""

    def __init__(self, node: Node, presence: Presence) -> None:
        self._node = node
        self._presence = presence
        self._links: dict[_Key, Link] = {}
        self._accepts: dict[Role, _Accepts] = {}
        self._latest: dict[_Key, int] = {}
        self._heard: dict[tuple[_Key, int], None] = {}
        self._resets: list[tuple[_Key, LinkFrame]] = []
        self._resets_wanted = anyio.Event()
        self._tasks: TaskGroup | None = None
        node.on(LinkFrame, self._on_frame)
        for role in presence.watched:
            presence.on_gone(role, self._on_peer_gone)

    def all(self) -> list[Link]:
        """The open links, in order of role and instance."""
        return [self._links[key] for key in sorted(self._links) if self._links[key].open]

    def get(self, role: Role, instance: str) -> Link | None:
        """The open link to that peer, if there is one."""
        link = self._links.get((role, instance))
        return link if link is not None and link.open else None

    async def connect(
        self,
        peer: Peer,
        *,
        receives: Any,
        on_message: Callable[[Link, Any], None],
        on_gone: Callable[[Link], None],
        profile: Profile,
        term: int = 0,
        timeout: float = 10.0,
    ) -> Link:
        """Say Hello to ``peer`` with a new session; a former link to it is replaced (without `on_gone`).

        ``on_message`` may be called before this returns the link to its caller, but not before the peer accepted.

        Args:
            receives: union of message types that come from the peer; None if nothing comes back.
            on_message: called in order, once per message; the message counts as applied when it returns. Must not block. One that raises
                ends the link, as a message that can't be decoded does.
            on_gone: called once when the link ends for any reason but `Link.close` or replacement by `connect`.

        Raises:
            HelloRefused: the peer says no, or protocol versions or digests don't match.
            NoResponders, TimedOut, Disconnected: the peer does not answer.
            BusError: its answer can't be read.
        """
        session = self._node.rng.getrandbits(63)
        link = self._new(
            peer.role, peer.instance, peer.incarnation, session, term, Owner(receives, on_message, on_gone)
        )
        hello = Hello(session, term, PROTOCOL_MIN, PROTOCOL_MAX, profile, peer.instance)
        try:
            reply = await self._node.call(peer.role, peer.instance, hello, HelloReply, timeout=timeout)
            self._check_reply(link, reply, profile)
        except BaseException:
            self._forget(link, farewell=True)
            raise
        link.start(reply.profile)
        return link

    def accept(
        self,
        role: Role,
        *,
        receives: Any,
        profile: Callable[[], Profile],
        admit: Callable[[Received[Hello]], Awaitable[ErrorInfo | None]],
        on_open: Callable[[Link], None],
        on_message: Callable[[Link, Any], None],
        on_gone: Callable[[Link], None],
    ) -> None:
        """Accept Hellos from ``role``. ``admit`` runs first and may wait (a worker drains its device in it); an error refuses.

        A new session of the same peer replaces its former link: `on_gone` of the old, then `on_open` of the new. That happens after
        ``admit`` has let it in. Only one ``admit`` per role runs at a time; one that was overtaken by a newer Hello of the same peer
        is refused afterwards (``stale``), and so is one that was heard before. A refusal carries the presence's ``term``.
        """
        if not self._accepts:
            self._node.serve(Hello, self._on_hello, limit=_HELLOS, busy=self._busy)
        self._accepts[role] = _Accepts(Owner(receives, on_message, on_gone, on_open), profile, admit, anyio.Lock())

    async def run(self) -> None:
        """Acknowledge, resend and watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for link in list(self._links.values()):
                tasks.start_soon(link.pump)
            await self._send_resets()

    # --- opening ---

    def _new(self, role: Role, instance: str, incarnation: int, session: int, term: int, owner: Owner) -> Link:
        former = self._links.get((role, instance))
        if former is not None:
            self._forget(former, farewell=False)
        link = Link(
            self._node,
            (role, instance, incarnation),
            session=session,
            term=term,
            owner=owner,
            patience=lambda: self._presence.patience.elapsed,
            end=self._end,
            forget=self._forget,
        )
        self._links[(role, instance)] = link
        if self._tasks is not None:
            self._tasks.start_soon(link.pump)
        return link

    def _check_reply(self, link: Link, reply: HelloReply, profile: Profile) -> None:
        if reply.error is not None:
            raise HelloRefused(reply.error.code, reply.error.message, reply.term)
        difference = mismatch(profile, reply.profile)
        if difference is not None:
            raise HelloRefused("mismatch", difference)
        if reply.session != link.session or self._links.get((link.peer_role, link.peer_instance)) is not link:
            raise HelloRefused("stale", "another Hello has overtaken this one")

    def _busy(self, hello: Hello) -> HelloReply:
        return HelloReply(hello.session, Profile(""), ErrorInfo("busy", "too many Hellos at once", retry_after_ms=1000))

    async def _on_hello(self, received: Received[Hello]) -> HelloReply:
        hello, sender = received.message, received.sender
        accepts = self._accepts.get(Role(sender.role))
        if accepts is None:
            return self._refuse(
                hello, Profile(""), ErrorInfo("mismatch", f"{self._node.role} has no links with {sender.role}")
            )
        key = (Role(sender.role), sender.instance)
        if hello.to not in ("", self._node.instance):
            self._node.refuse("session")
            return self._refuse(hello, accepts.profile(), ErrorInfo("mismatch", "another instance is meant"))
        if not self._first_time(key, hello.session):
            return await self._repeated(key, received, accepts)
        error = check_hello(hello, accepts.profile()) or self._no_room(key)
        self._latest[key] = hello.session
        try:
            async with accepts.one_at_a_time:
                if error is None:
                    error = self._overtaken(key, hello) or await accepts.admit(received)
                error = error or self._overtaken(key, hello)
                if error is not None:
                    return self._refuse(hello, accepts.profile(), error)
                self._open(sender, hello, accepts)
                return HelloReply(hello.session, accepts.profile())
        finally:
            if self._latest.get(key) == hello.session:
                del self._latest[key]

    def _first_time(self, key: _Key, session: int) -> bool:
        if (key, session) in self._heard:
            return False
        self._heard[key, session] = None
        if len(self._heard) > _SESSIONS:
            del self._heard[next(iter(self._heard))]
        return True

    async def _repeated(self, key: _Key, received: Received[Hello], accepts: _Accepts) -> HelloReply:
        """The bus brought a Hello twice, or somebody plays one back: nothing changes. That of the open link is answered as it was."""
        hello = received.message
        if self._latest.get(key) == hello.session:
            async with accepts.one_at_a_time:
                pass  # the first of them is still being admitted
        link = self.get(*key)
        same = link is not None and (link.session, link.peer_incarnation) == (
            hello.session,
            received.sender.incarnation,
        )
        if same:
            return HelloReply(hello.session, accepts.profile())
        self._node.refuse("session")
        return self._refuse(hello, accepts.profile(), ErrorInfo("stale", "this session was opened before"))

    def _no_room(self, key: _Key) -> ErrorInfo | None:
        if key in self._links or len(self._links) < _LINKS:
            return None
        return ErrorInfo("busy", "too many links are open", retry_after_ms=1000)

    def _overtaken(self, key: _Key, hello: Hello) -> ErrorInfo | None:
        if self._latest.get(key) == hello.session:
            return None
        return ErrorInfo("stale", "another Hello has overtaken this one")

    def _refuse(self, hello: Hello, profile: Profile, error: ErrorInfo) -> HelloReply:
        return HelloReply(hello.session, profile, error, self._presence.term())

    def _open(self, sender: Sender, hello: Hello, accepts: _Accepts) -> None:
        role = Role(sender.role)
        former = self._links.get((role, sender.instance))
        if former is not None and former.open:
            self._end(former, "opened a new session")
        link = self._new(role, sender.instance, sender.incarnation, hello.session, hello.term, accepts.owner)
        link.start(hello.profile)
        link.opened()

    # --- frames ---

    def _on_frame(self, received: Received[LinkFrame]) -> None:
        frame, sender = received.message, received.sender
        link = self._links.get((Role(sender.role), sender.instance))
        if link is None or link.session != frame.session:
            self._node.refuse("session")
            if not frame.reset:
                self._want_reset(sender, frame)
        elif frame.reset:
            self._end(link, "has ended this session")
        elif link.term != frame.term:
            self._node.refuse("term")
        elif link.peer_incarnation != sender.incarnation:
            self._node.refuse("incarnation")
        else:
            link.receive(frame)

    def _want_reset(self, sender: Sender, frame: LinkFrame) -> None:
        """Tell a peer that its session is over. It may be one of ours that we forgot, or of a process before us."""
        entry = ((Role(sender.role), sender.instance), LinkFrame(frame.session, frame.term, 0, 0, 0, reset=True))
        if len(self._resets) < _RESETS and entry not in self._resets:
            self._resets.append(entry)
            self._resets_wanted.set()

    async def _send_resets(self) -> None:
        while True:
            await self._resets_wanted.wait()
            self._resets_wanted = anyio.Event()
            resets, self._resets = self._resets, []
            for (role, instance), frame in resets:
                try:
                    await self._node.send(role, instance, frame)
                except Disconnected:
                    break

    # --- ends ---

    def _forget(self, link: Link, farewell: bool) -> None:
        """End ``link`` silently."""
        if self._links.get((link.peer_role, link.peer_instance)) is link:
            del self._links[(link.peer_role, link.peer_instance)]
        link.stop(farewell=farewell)

    def _end(self, link: Link, reason: str) -> None:
        """End ``link`` and tell its owner, once. One that is still opening is left to `connect`."""
        if not link.open:
            return
        _log.info("the link to %s %s ended: it %s", link.peer_role, link.peer_instance, reason)
        self._forget(link, farewell=True)
        link.ended = reason
        link.gone()

    def _on_peer_gone(self, peer: Peer) -> None:
        link = self._links.get((peer.role, peer.instance))
        if link is not None and link.peer_incarnation == peer.incarnation:
            self._end(link, LEFT if peer.state == LEFT else "is gone")
