"""Who serves: the leading scheduler and the tokenizers that can send us text."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from phloem_bus.link import Link
from phloem_bus.presence import Peer, Presence
from phloem_proto.subjects import Role

from .checks import ModelFacts
from .errors import unavailable

PATIENCE_S = 0.8
"""How long a new request waits for somebody to serve it: its client is told within a second."""
LOOK_S = 0.05


class Backends:
    """A view on presence and links; asks, never changes anything but `links`.

    Args:
        model: the served model's name.
    """

    def __init__(self, presence: Presence, model: str) -> None:
        self.presence = presence
        self.model = model
        self.links: dict[str, Link] = {}
        """Detokeniser links by tokenizer instance."""
        self.draining = False

    def leader(self) -> Peer | None:
        """The scheduler that workers follow; if none says that it has any, the one with the highest term.

        More than one may claim to lead while they can't hear each other.
        """
        leading = [peer for peer in self.presence.peers(Role.SCHEDULER) if peer.term > 0 and peer.state == "ready"]
        return max(leading, key=lambda peer: (peer.load.workers > 0, peer.term, peer.instance), default=None)

    def detokeniser(self, prefer: str = "", *, exclude: Collection[str] = ()) -> Peer | None:
        """A ready tokenizer with an open link to us; ``prefer`` if it is one."""
        unlinked = [p.instance for p in self.presence.peers(Role.TOKENIZER) if p.instance not in self.links]
        peer = self.presence.get(Role.TOKENIZER, prefer) if prefer in self.links and prefer not in exclude else None
        if peer is not None and peer.state == "ready":
            return peer
        return self.presence.choose(Role.TOKENIZER, exclude=[*unlinked, *exclude])

    def facts(self) -> ModelFacts:
        """What peers say of the model: the scheduler's context length and vocabulary, else the tokenizers'."""
        leader = self.leader()
        profiles = [leader.profile] if leader is not None else []
        profiles += [peer.profile for peer in self.presence.peers(Role.TOKENIZER)]
        return ModelFacts(
            self.model,
            next((p.context_length for p in profiles if p.context_length), 0),
            next((p.vocab_size for p in profiles if p.vocab_size), 0),
        )

    def trouble(self) -> str | None:
        """Why no request can be served now; None when one can."""
        if self.draining:
            return "The server is shutting down."
        if not self.presence.node.bus.connected:
            return "The message bus is not reachable."
        leader = self.leader()
        if leader is None:
            return "No scheduler is ready."
        if leader.load.workers < 1:
            return "No worker is ready."
        if self.detokeniser() is None:
            return "No tokenizer is ready."
        return None

    async def require(self) -> Peer:
        """The leading scheduler, once a request can be served; a restart or a change of the lead is waited for a moment.

        Raises:
            ApiError: ``service_unavailable``.
        """
        until = anyio.current_time() + PATIENCE_S
        while True:
            trouble, leader = self.trouble(), self.leader()
            if trouble is None and leader is not None:
                return leader
            if self.draining or not self.presence.node.bus.connected or anyio.current_time() >= until:
                raise unavailable(trouble or "No scheduler is ready.")
            await anyio.sleep(LOOK_S)

    def require_scheduler(self) -> Peer:
        """The leading scheduler, whether or not it has workers. Raises `ApiError` (``service_unavailable``) if there is none."""
        leader = self.leader()
        if self.draining:
            raise unavailable("The server is shutting down.")
        if not self.presence.node.bus.connected:
            raise unavailable("The message bus is not reachable.")
        if leader is None:
            raise unavailable("No scheduler is ready.")
        return leader

    def tokenizers(self) -> int:
        """How many take calls; at least 1."""
        return max(1, sum(peer.state == "ready" for peer in self.presence.peers(Role.TOKENIZER)))

    def require_tokenizer(self) -> None:
        """Raises `ApiError` (``service_unavailable``) if no tokenizer can be called now."""
        if self.draining:
            raise unavailable("The server is shutting down.")
        if not self.presence.node.bus.connected or self.presence.choose(Role.TOKENIZER) is None:
            raise unavailable("No tokenizer is ready.")
