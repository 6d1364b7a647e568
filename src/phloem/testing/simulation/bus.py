"""The bus of a simulation: a `LocalBroker` that writes down what passes and does to it what the faults say."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from phloem_bus.bus import RawMessage
from phloem_bus.faults import Faults
from phloem_bus.local import LocalBroker, LocalBus
from phloem_bus.mailbox import Mailbox

from .trace import Trace

DELAY_S = (0.0002, 0.004)
"""(least, most) a delivery takes while nothing is wrong: a local network."""


class Network(Faults):
    """`Faults` with one-way cuts and connections that hear late. Equal seeds and equal traffic give equal faults."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, delay_s=DELAY_S)
        self._one_way: list[tuple[str, str]] = []
        self._deaf: dict[str, float] = {}

    def slow(self, seconds: float) -> None:
        """Let deliveries take up to so much longer."""
        self.delay_s = (DELAY_S[0], DELAY_S[1] + seconds)

    def cut(self, sender: str, receiver: str) -> None:
        """Lose everything from ``sender`` to ``receiver``."""
        self._one_way.append((sender, receiver))

    def join(self, sender: str, receiver: str) -> None:
        """End one `cut`."""
        if (sender, receiver) in self._one_way:
            self._one_way.remove((sender, receiver))

    def deafen(self, name: str, seconds: float) -> None:
        """What is sent to ``name`` arrives after so many seconds, all at once: a process that was stopped, or a slow consumer."""
        self._deaf[name] = anyio.current_time() + seconds

    def heal(self) -> None:
        super().heal()
        self._one_way.clear()
        self._deaf.clear()
        self.slow(0.0)

    def pass_on(self, sender: str, receiver: str, mailbox: Mailbox, message: RawMessage) -> None:
        if (sender, receiver) in self._one_way:
            self.lost += 1
            return
        super().pass_on(sender, receiver, mailbox, message)

    def takes(self, receiver: str) -> float:
        return max(super().takes(receiver), self._deaf.get(receiver, 0.0) - anyio.current_time())


class SimBroker(LocalBroker):
    """Joins the simulated processes.

    Args:
        network: what happens to deliveries.
        trace: where every message is noted.
    """

    def __init__(self, network: Network, trace: Trace, seed: int) -> None:
        super().__init__(seed=seed, faults=network)
        self.listeners: list[Callable[[RawMessage], object]] = []
        self._trace = trace

    def deliver(self, publisher: LocalBus, message: RawMessage) -> int:
        receivers = super().deliver(publisher, message)
        self._trace.message(publisher.name, message, receivers)
        for listener in self.listeners:
            listener(message)
        return receivers
