"""Who is there: beats out, peers in, and calls to the least busy of them (DESIGN 4.2 and 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from phloem_proto.messages import Load, Message, Profile
from phloem_proto.subjects import Role

from .node import Node

R = TypeVar("R", bound=Message)

BEAT_S = 0.25
SUSPECT_S = 0.75
GONE_S = 1.5


@dataclass(slots=True)
class Peer:
    """An instance of another role as we see it."""

    role: Role
    instance: str
    incarnation: int
    state: str
    profile: Profile
    load: Load
    term: int
    last_heard: float
    suspect: bool = False
    in_flight: int = 0
    """Our own calls that it has not answered yet."""


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

    def set_state(self, state: str) -> None:
        """``starting`` | ``ready`` | ``draining``; told to peers at once."""
        raise NotImplementedError

    def peers(self, role: Role) -> list[Peer]:
        """Those of ``role`` that are present, in order of instance."""
        raise NotImplementedError

    def get(self, role: Role, instance: str) -> Peer | None:
        raise NotImplementedError

    def choose(self, role: Role, *, exclude: Collection[str] = ()) -> Peer | None:
        """The ready, unsuspected peer with the fewest of our calls in flight (then by its own load, then in rotation)."""
        raise NotImplementedError

    def on_join(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` when a peer appears or changes its incarnation (after its `on_gone`). Never blocks."""
        raise NotImplementedError

    def on_change(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` when a peer's state, term or profile changes."""
        raise NotImplementedError

    def on_gone(self, role: Role, handler: Callable[[Peer], None]) -> None:
        """Call ``handler`` once when a peer is gone."""
        raise NotImplementedError

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

        Returns the reply and who gave it. With a single instance present, the first call is waited for until ``timeout``.

        Raises:
            NoPeer: no ready instance is present.
            TimedOut, Disconnected, PayloadTooLarge, NoResponders: as `Node.call`, after the second try.
        """
        raise NotImplementedError

    async def run(self) -> None:
        """Beat and watch until cancelled."""
        raise NotImplementedError

    async def goodbye(self) -> None:
        """Tell everybody that we leave. Never raises for a bus that is down."""
        raise NotImplementedError
