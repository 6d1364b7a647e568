"""A service's place on the bus: typed messages in and out under its role and instance."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from phloem_proto.codec import Sender
from phloem_proto.messages import Message
from phloem_proto.subjects import Role

from .bus import Bus

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """A decoded message and who sent it. ``reply`` is where an answer to a call goes."""

    message: M
    sender: Sender
    reply: str | None = None


class Node:
    """Sends and receives typed messages as one instance of one role.

    It listens on its own subject and on the broadcast subject of its role. What can't be decoded, or names another sender than its
    subject allows, is dropped and counted in ``refused`` (by reason).

    Args:
        bus: the connection.
        role, instance, incarnation: who we are; ``incarnation`` is random per process start.
        namespace, model: subject tokens (``model`` already slugged).
        rng: for jitter and sessions.
    """

    def __init__(
        self, bus: Bus, *, role: Role, instance: str, incarnation: int, namespace: str, model: str, rng: random.Random
    ) -> None:
        self.bus = bus
        self.role = role
        self.instance = instance
        self.sender = Sender(role, instance, incarnation)
        self.namespace = namespace
        self.model = model
        self.rng = rng
        self.refused: dict[str, int] = {}

    def on(self, kind: type[M], handler: Callable[[Received[M]], None]) -> None:
        """Call ``handler`` for each message of ``kind``, in order of arrival, from the dispatch loop. It must not block.

        Several handlers of one kind are called in order of registration.
        """
        raise NotImplementedError

    def serve(
        self,
        kind: type[M],
        handler: Callable[[Received[M]], Awaitable[Message]],
        *,
        limit: int,
        busy: Callable[[M], Message],
    ) -> None:
        """Answer calls of ``kind``: each runs in its own task, at most ``limit`` at once; beyond that ``busy(message)`` is the answer."""
        raise NotImplementedError

    async def run(self, inbox: Any, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Subscribe and dispatch until cancelled. ``inbox`` is the union of what this role may receive (``messages.GatewayInbox`` ...)."""
        raise NotImplementedError

    async def send(self, to: Role, instance: str, message: msgspec.Struct) -> None:
        """Publish to one instance, or to ``subjects.ALL``. Raises `Disconnected`, `PayloadTooLarge`."""
        raise NotImplementedError

    async def call(self, to: Role, instance: str, message: Message, reply: type[R], *, timeout: float) -> R:
        """Send a call and wait for its reply.

        Raises:
            NoResponders, TimedOut, Disconnected, PayloadTooLarge: as `Bus.request`.
            BusError: the reply can't be decoded.
        """
        raise NotImplementedError

    async def respond(self, received: Received[Any], message: Message) -> None:
        """Answer a call that came through `on`. Does nothing if the sender wants no reply or the bus is down."""
        raise NotImplementedError
