"""Links to gateways: one to each that is present, opened again when it is gone, and text frames sent over them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio
import msgspec

from phloem_bus.errors import BusError, HelloRefused, LinkClosed, PayloadTooLarge
from phloem_bus.link import Link, Links
from phloem_bus.presence import Peer, Presence
from phloem_proto.messages import Cancel, End, GatewayLinkUp, Live, Profile, Text, TextFrame
from phloem_proto.subjects import Role

RETRY_S = 0.1
MAX_RETRY_S = 2.0  # a gateway that refuses us (another model's files) is asked again this often

_log = logging.getLogger("phloem.tokenizer")


class GatewayRoutes:
    """Keeps a link to every gateway. `run_for` is to be started once for each gateway that appears.

    `on_lost` is called with a gateway's instance when the link to it is gone, `on_message` with it and what comes over the link.
    """

    def __init__(
        self,
        links: Links,
        presence: Presence,
        profile: Callable[[], Profile],
        on_lost: Callable[[str], None],
        on_message: Callable[[str, Cancel | Live], None],
    ) -> None:
        self._links = links
        self._presence = presence
        self._profile = profile
        self._on_lost = on_lost
        self._on_message = on_message
        self._changed = anyio.Event()

    async def run_for(self, peer: Peer) -> None:
        """Hold a link to this process of a gateway until it is gone."""
        pause = RETRY_S
        while self._is_there(peer):
            gone = anyio.Event()

            def on_gone(link: Link, gone: anyio.Event = gone) -> None:
                gone.set()
                self._on_lost(link.peer_instance)

            try:
                await self._links.connect(
                    peer,
                    receives=GatewayLinkUp,
                    on_message=lambda link, message: self._on_message(link.peer_instance, message),
                    on_gone=on_gone,
                    profile=self._profile(),
                )
            except BusError as error:
                level = logging.WARNING if isinstance(error, HelloRefused) else logging.INFO
                _log.log(level, "no link to gateway %s: %s", peer.instance, error)
                await anyio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)
                continue
            pause = RETRY_S
            self._note_change()
            await gone.wait()

    async def wait_for(self, gateway: str, timeout_s: float) -> bool:
        """Whether there is a link to this gateway, waiting for one if need be (a request may come before it)."""
        with anyio.move_on_after(timeout_s):
            while self._links.get(Role.GATEWAY, gateway) is None:
                await self._changed.wait()
        return self._links.get(Role.GATEWAY, gateway) is not None

    def send(self, gateway: str, frames: Sequence[TextFrame]) -> None:
        """Send frames to a gateway; never blocks. Without a link they are dropped: `on_lost` was or will be called."""
        link = self._links.get(Role.GATEWAY, gateway)
        if link is None:
            return
        try:
            self._send(link, frames)
        except LinkClosed:
            _log.info("the link to gateway %s closed under %d frames", gateway, len(frames))

    def _send(self, link: Link, frames: Sequence[TextFrame]) -> None:
        try:
            link.send(Text(tuple(frames)))
        except PayloadTooLarge:
            if len(frames) > 1:
                middle = len(frames) // 2
                self._send(link, frames[:middle])
                self._send(link, frames[middle:])
            else:
                link.send(Text((_without_logprobs(frames[0]),)))

    def _is_there(self, peer: Peer) -> bool:
        present = self._presence.get(Role.GATEWAY, peer.instance)
        return present is not None and present.incarnation == peer.incarnation

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _without_logprobs(frame: TextFrame) -> TextFrame:
    """Only logprobs (of a long prompt, say) make one frame too large: without them the choice can't go on as asked."""
    end = End("error", code="too_large", message="the logprobs of one step do not fit a message of the bus")
    return msgspec.structs.replace(frame, end=end, logprobs=(), prompt_logprobs=())
