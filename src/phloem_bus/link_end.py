"""One end of a link: the core of it, its sender task, and what its owner wants to hear."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from phloem_proto.codec import Codec, encode_body
from phloem_proto.messages import LinkFrame, Message, Profile
from phloem_proto.subjects import Role

from .errors import BusError, Disconnected, LinkClosed, PayloadTooLarge
from .link_core import ACK_S, LinkCore
from .node import Node

_log = logging.getLogger("phloem.bus")

FRAME_OVERHEAD = 512
"""More bytes than envelope, sender and numbers of a frame can take."""
BUSY_S = 0.1
"""After a frame has come, more are expected for this long."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What the owner of a link wants of it: see `Links.connect` and `Links.accept`."""

    receives: Any
    on_message: Callable[[Link, Any], None]
    on_gone: Callable[[Link], None]
    on_open: Callable[[Link], None] = lambda _: None


class Link:
    """One end of a link to ``peer``. Made by `Links` only."""

    peer_role: Role
    peer_instance: str
    peer_incarnation: int
    peer_profile: Profile
    session: int
    term: int

    def __init__(
        self,
        node: Node,
        peer: tuple[Role, str, int],
        *,
        session: int,
        term: int,
        owner: Owner,
        patience: Callable[[], float],
        end: Callable[[Link, str], None],
        forget: Callable[[Link, bool], None],
    ) -> None:
        self.peer_role, self.peer_instance, self.peer_incarnation = peer
        self.peer_profile = Profile("")
        self.session = session
        self.term = term
        self.ended = ""
        """What the peer did that ended it, once the owner is told: `peers.LEFT` after a goodbye."""
        self._node = node
        self._owner = owner
        self._codec: Codec[Any] | None = None if owner.receives is None else Codec(owner.receives)
        self._patience = patience
        self._end = end
        self._forget = forget
        self._core = LinkCore(anyio.current_time(), patience())
        self._max_body = node.bus.max_payload - FRAME_OVERHEAD
        self._state = "opening"
        self._wake = anyio.Event()
        self._sleeps_until = float("-inf")
        self._heard_at = float("-inf")
        self._farewell = False

    def __repr__(self) -> str:
        return f"<Link to {self.peer_role} {self.peer_instance}, {self._state}>"

    @property
    def open(self) -> bool:
        return self._state == "open"

    @property
    def unacknowledged(self) -> int:
        """Messages sent and not yet applied by the peer."""
        return self._core.unacknowledged

    def send(self, message: Message) -> None:
        """Queue ``message`` for delivery; never blocks. A peer that leaves the window full for 3 s is gone.

        Raises:
            LinkClosed: the link is gone.
            PayloadTooLarge: the message can't travel on this bus.
        """
        if self._state != "open":
            raise LinkClosed(f"the link to {self.peer_role} {self.peer_instance} is closed")
        body = encode_body(message)
        if len(body) > self._max_body:
            raise PayloadTooLarge(len(body) + FRAME_OVERHEAD, self._max_body + FRAME_OVERHEAD)
        fits = self._core.push(body, self._patience())
        self._wake.set()  # an overflow, too: the sender task finds it and tells the owner outside of this call
        if not fits:
            raise LinkClosed(f"the link to {self.peer_role} {self.peer_instance} has too much waiting")

    def close(self) -> None:
        """End this link from our side, without `on_gone`. The peer is told, and gets its `on_gone`."""
        self._forget(self, True)

    # --- for Links ---

    def start(self, profile: Profile) -> None:
        """The handshake is done: deliver what came early, and let messages out."""
        self.peer_profile = profile
        self._state = "open"
        self._wake.set()

    def stop(self, *, farewell: bool) -> None:
        """No more in or out; with ``farewell`` the peer is told that this session is over."""
        if self._state != "closed":
            self._state = "closed"
            self._farewell = farewell
            self._wake.set()

    def gone(self) -> None:
        """Tell the owner."""
        try:
            self._owner.on_gone(self)
        except Exception:
            self._node.refuse("failed")
            _log.exception("handling the end of the link to %s %s failed", self.peer_role, self.peer_instance)

    def opened(self) -> None:
        """Tell the owner that the peer has opened this link."""
        self._owner.on_open(self)

    def receive(self, frame: LinkFrame) -> None:
        """Take in a frame of this session and apply what is in order."""
        self._heard_at = anyio.current_time()
        trouble = self._core.receive(frame.seq, frame.ack, frame.body, self._heard_at, self._patience())
        if trouble:
            self._node.refuse(trouble)
        self._deliver()
        if self._core.due() < self._sleeps_until:
            self._wake.set()

    async def pump(self) -> None:
        """Send what is due until the link is closed."""
        since = self._node.bus.connected_since
        while self._state != "closed":
            self._wake = anyio.Event()
            if self._node.bus.connected_since != since:
                since = self._node.bus.connected_since
                self._core.reconnected()
            if self._state == "open":
                self._deliver()
                await self._send_due()
            reason = self._core.gone(self._patience())
            if reason is not None:
                self._end(self, reason)
                break
            self._sleeps_until = self._rests_until() if self._state == "open" else float("inf")
            with anyio.CancelScope(deadline=self._sleeps_until):
                await self._wake.wait()
            self._sleeps_until = float("-inf")
        if self._farewell:
            await self._send(LinkFrame(self.session, self.term, 0, 0, 0, reset=True))

    def _rests_until(self) -> float:
        """When something is due. While frames come, no later than the next one's acknowledgement may be, so that none of them has to wake us."""
        now = anyio.current_time()
        soon = now + ACK_S if now < self._heard_at + BUSY_S else float("inf")
        return min(self._core.due(), soon)

    def _deliver(self) -> None:
        while self._state == "open" and (body := self._core.take()) is not None:
            try:
                if self._codec is None:
                    raise BusError("nothing was to come over this link")
                message = self._codec.decode_body(body)
                self._owner.on_message(self, message)
            except msgspec.DecodeError as error:
                self._node.refuse("malformed")
                _log.error("a message of %s %s can't be read: %s", self.peer_role, self.peer_instance, error)
                self._end(self, "sent what can't be read")
                return
            except Exception:
                self._node.refuse("failed")
                _log.exception("applying a message of %s %s failed", self.peer_role, self.peer_instance)
                self._end(self, "sent what could not be applied")
                return
            self._core.applied(anyio.current_time())

    async def _send_due(self) -> None:
        while self._state == "open":
            frame = self._core.next_frame(anyio.current_time())
            if frame is None:
                return
            if not await self._send(LinkFrame(self.session, self.term, frame.seq, frame.ack, frame.last, frame.body)):
                return  # it counts as lost: the timer brings it again

    async def _send(self, frame: LinkFrame) -> bool:
        try:
            await self._node.send(self.peer_role, self.peer_instance, frame)
        except Disconnected:
            return False
        return True
