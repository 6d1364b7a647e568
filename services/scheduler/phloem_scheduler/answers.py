"""Replies to calls, and messages outside of links, sent by a task of their own so that planning never waits for the bus."""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio

from phloem_bus.errors import BusError
from phloem_bus.node import Node, Received
from phloem_proto.messages import Message
from phloem_proto.subjects import Role

# As many as calls that can have arrived at once; who gets no answer asks again.
MOST_ANSWERS = 16_384


class Answers:
    """Takes messages at any time; `run` sends them in order."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: deque[tuple[Received[Any] | str, Message]] = deque()
        self._wake = anyio.Event()

    def __len__(self) -> int:
        """Messages that are not sent yet."""
        return len(self._waiting)

    def reply(self, received: Received[Any], message: Message) -> None:
        """Answer a call."""
        self._add(received, message)

    def send(self, gateway: str, message: Message) -> None:
        """To a gateway, or to a group of them."""
        self._add(gateway, message)

    def _add(self, to: Received[Any] | str, message: Message) -> None:
        if len(self._waiting) >= MOST_ANSWERS:
            self._node.refuse("no_reply")
            return
        self._waiting.append((to, message))
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled. What can't be sent is dropped: the other side asks again, or finds out when it reconciles."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._waiting:
                to, message = self._waiting.popleft()
                try:
                    if isinstance(to, str):
                        await self._node.send(Role.GATEWAY, to, message)
                    else:
                        await self._node.respond(to, message)
                except BusError:
                    self._node.refuse("no_reply")
