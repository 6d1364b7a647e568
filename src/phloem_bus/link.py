"""Links: ordered, reliable, one per pair (DESIGN 4.4). Retransmission is here; services see messages once and in order, or `on_gone`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from phloem_proto.messages import ErrorInfo, Hello, Message, Profile
from phloem_proto.subjects import Role

from .node import Node, Received
from .presence import Peer, Presence


class Link:
    """One end of a link to ``peer``."""

    peer_role: Role
    peer_instance: str
    peer_incarnation: int
    peer_profile: Profile
    session: int
    term: int

    @property
    def open(self) -> bool: ...

    @property
    def unacknowledged(self) -> int:
        """Messages sent and not yet applied by the peer."""
        ...

    def send(self, message: Message) -> None:
        """Queue ``message`` for delivery; never blocks. A peer that leaves the window full for 3 s is gone.

        Raises:
            LinkClosed: the link is gone.
            PayloadTooLarge: the message can't travel on this bus.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End this link from our side, without `on_gone`."""
        raise NotImplementedError


class Links:
    """All links of a service. Its `run` must run beside the node's."""

    def __init__(self, node: Node, presence: Presence) -> None:
        raise NotImplementedError

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

        Args:
            receives: union of message types that come from the peer; None if nothing comes back.
            on_message: called in order, once per message; the message counts as applied when it returns. Must not block.
            on_gone: called once when the link ends for any reason but `Link.close` or replacement by `connect`.

        Raises:
            HelloRefused: the peer says no, or protocol versions or digests don't match.
            NoResponders, TimedOut, Disconnected: the peer does not answer.
        """
        raise NotImplementedError

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

        A new session of the same peer replaces its former link: `on_gone` of the old, then `on_open` of the new.
        """
        raise NotImplementedError

    async def run(self) -> None:
        """Acknowledge, resend and watch until cancelled."""
        raise NotImplementedError
