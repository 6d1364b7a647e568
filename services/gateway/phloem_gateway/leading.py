"""Calls to the leading scheduler about its cache."""

from __future__ import annotations

from typing import TypeVar

from phloem_bus.errors import BusError, Disconnected, PayloadTooLarge
from phloem_proto.messages import Message
from phloem_proto.subjects import Role

from .backends import Backends
from .errors import ApiError, unavailable

R = TypeVar("R", bound=Message)

CALL_S = 2.0
"""How long a scheduler may take: it answers between two steps."""
TRIES = 2
"""The bus delivers at most once, and who leads may change meanwhile. What is called here can be done twice."""


async def call_leader(backends: Backends, message: Message, reply: type[R]) -> R:
    """The leader's answer, which may hold an error.

    Raises:
        ApiError: ``service_unavailable``, as nobody leads or it does not answer; ``request_too_large``, as no message can hold it.
    """
    for _ in range(TRIES):
        leader = backends.require_scheduler()
        try:
            return await backends.presence.node.call(Role.SCHEDULER, leader.instance, message, reply, timeout=CALL_S)
        except PayloadTooLarge:
            raise ApiError(
                "request_too_large", "The request is too large to be passed on inside this server."
            ) from None
        except Disconnected:
            raise unavailable("The message bus is not reachable.") from None
        except BusError:
            continue
    raise unavailable("The scheduler did not answer.")
