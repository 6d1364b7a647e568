"""Links to workers and detokenisers: opened when a peer is ready, opened again when they are lost while it stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from phloem_bus.errors import BusError, HelloRefused
from phloem_bus.link import Link, Links
from phloem_bus.presence import Peer, Presence
from phloem_proto.messages import DetokeniserLinkUp, Profile, WorkerLinkUp
from phloem_proto.subjects import Role

from .leadership import Leadership

RETRY_S = 0.1
"""First pause after a Hello that came to nothing; it doubles up to 1 s."""
MISMATCH_S = 5.0
"""Pause after a refusal that only a restart of the peer can change."""
HELLO_S = 35.0
"""A worker drains its device before it answers: it waits up to 30 s for the step that runs."""

_log = logging.getLogger("phloem.scheduler")

Key = tuple[Role, str]


class Owner(Protocol):
    """Who wants to know of links."""

    def linked(self, link: Link) -> None:
        """A new session is open."""
        ...

    def unlinked(self, link: Link) -> None:
        """It is gone."""
        ...

    def heard(self, link: Link, message: Any) -> None:
        """The peer says something."""
        ...


class Neighbours:
    """Keeps a link to every ready worker and tokenizer while `run` runs."""

    def __init__(
        self, links: Links, presence: Presence, leadership: Leadership, owner: Owner, profile: Callable[[], Profile]
    ) -> None:
        self._links = links
        self._presence = presence
        self._leadership = leadership
        self._owner = owner
        self._profile = profile
        self._tasks: TaskGroup | None = None
        self._connecting: dict[Key, anyio.CancelScope] = {}
        self._open: dict[Key, Link] = {}
        for role in (Role.WORKER, Role.TOKENIZER):
            presence.on_join(role, self._consider)
            presence.on_change(role, self._consider)
            presence.on_gone(role, self._give_up)

    def get(self, role: Role, instance: str) -> Link | None:
        """The open link to a peer."""
        return self._open.get((role, instance))

    def of(self, role: Role) -> list[Link]:
        """Open links to peers of a role, in order of their opening."""
        return [link for (kind, _), link in self._open.items() if kind is role]

    async def run(self) -> None:
        """Until cancelled; then all links are closed."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for role in (Role.WORKER, Role.TOKENIZER):
                    for peer in self._presence.peers(role):
                        self._consider(peer)
                await anyio.sleep_forever()
        finally:
            self._tasks = None
            self._connecting.clear()
            for key in list(self._open):
                self._close(key)

    def renew(self, role: Role, instance: str) -> None:
        """The session can't go on: open a new one. The owner knows that the old one is gone."""
        link = self._open.pop((role, instance), None)
        if link is not None:
            link.close()
        peer = self._presence.get(role, instance)
        if peer is not None:
            self._consider(peer)

    def _close(self, key: Key) -> None:
        link = self._open.pop(key)
        link.close()
        self._owner.unlinked(link)

    def _consider(self, peer: Peer) -> None:
        """A peer is there, or has changed."""
        key = (peer.role, peer.instance)
        if peer.state == "ready":
            if self._tasks is not None and key not in self._connecting and key not in self._open:
                scope = self._connecting[key] = anyio.CancelScope()
                self._tasks.start_soon(self._connect, key, scope)
        elif peer.state == "draining" and peer.role is Role.WORKER and key in self._open:
            _log.info("worker %s is leaving: its requests go on elsewhere", peer.instance)
            self._close(key)

    def _give_up(self, peer: Peer) -> None:
        """A peer is gone, and no answer of it is to be waited for: another process may come under its name."""
        scope = self._connecting.pop((peer.role, peer.instance), None)
        if scope is not None:
            scope.cancel()

    async def _connect(self, key: Key, scope: anyio.CancelScope) -> None:
        pause = RETRY_S
        try:
            with scope:
                while (peer := self._presence.get(*key)) is not None and peer.state == "ready":
                    if await self._hello(peer):
                        return
                    await anyio.sleep(pause)
                    pause = min(1.0, 2 * pause)
        finally:
            if self._connecting.get(key) is scope:
                del self._connecting[key]

    async def _hello(self, peer: Peer) -> bool:
        """One try; returns whether the link is open."""
        try:
            link = await self._links.connect(
                peer,
                receives=WorkerLinkUp if peer.role is Role.WORKER else DetokeniserLinkUp,
                on_message=self._owner.heard,
                on_gone=self._gone,
                profile=self._profile(),
                term=self._leadership.number,
                timeout=HELLO_S,
            )
        except HelloRefused as refusal:
            await self._refused(peer, refusal)
            return False
        except BusError as error:
            _log.info("no link to %s %s yet: %s", peer.role, peer.instance, error)
            return False
        self._open[peer.role, peer.instance] = link
        self._owner.linked(link)
        return True

    async def _refused(self, peer: Peer, refusal: HelloRefused) -> None:
        if refusal.code == "fenced":
            others = any(other.term > 0 for other in self._presence.peers(Role.SCHEDULER))
            self._leadership.fenced(refusal.term, others)
        elif refusal.code == "mismatch":
            _log.error("%s %s does not fit: %s", peer.role, peer.instance, refusal.message)
            await anyio.sleep(MISMATCH_S)
        else:
            _log.info("%s %s refuses a link: %s", peer.role, peer.instance, refusal)

    def _gone(self, link: Link) -> None:
        key = (link.peer_role, link.peer_instance)
        if self._open.get(key) is link:
            del self._open[key]
            self._owner.unlinked(link)
            peer = self._presence.get(*key)
            if peer is not None:
                self._consider(peer)
