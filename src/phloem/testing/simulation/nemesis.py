"""Makes the faults of a scenario happen."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping

import anyio

from phloem_bus.bus import RawMessage
from phloem_bus.local import LocalBus

from .bus import Network, SimBroker
from .process import DRAIN_S, Process
from .scenario import Fault
from .trace import Trace

REMEMBERED = 500
"""Latest messages that a forger may replay."""


class Nemesis:
    """One method per kind of fault; each returns when its fault is over."""

    def __init__(
        self,
        broker: SimBroker,
        network: Network,
        processes: Mapping[str, Process],
        trace: Trace,
        rng: random.Random,
        start: Callable[[Process], None],
    ) -> None:
        self.happened: Counter[str] = Counter()
        self._broker = broker
        self._network = network
        self._processes = processes
        self._trace = trace
        self._rng = rng
        self._start = start
        self._seen: deque[RawMessage] = deque(maxlen=REMEMBERED)
        self._stranger: LocalBus | None = None
        broker.listeners.append(self._seen.append)

    async def run(self, fault: Fault, start: float) -> None:
        """Wait for the fault's time, then let it happen."""
        await anyio.sleep_until(start + fault.at)
        self._trace.note("nemesis", str(fault))
        self.happened[fault.kind] += 1
        await getattr(self, fault.kind)(fault)
        self._trace.note("nemesis", f"{fault.kind} {fault.who} is over")

    async def kill(self, fault: Fault) -> None:
        """A process dies and is started again."""
        process = self._processes[fault.who]
        process.kill()
        await process.ended.wait()
        await self._start_later(process, fault.seconds)

    async def drain(self, fault: Fault) -> None:
        """A process is told to stop, and started again."""
        process = self._processes[fault.who]
        process.drain()
        with anyio.move_on_after(DRAIN_S + 5):
            await process.ended.wait()
        await self._start_later(process, fault.seconds)

    async def _start_later(self, process: Process, seconds: float) -> None:
        await anyio.sleep(seconds)
        if not process.running:  # another fault may have seen to it
            self._start(process)

    async def partition(self, fault: Fault) -> None:
        """Two processes don't hear each other."""
        self._network.cut(fault.who, fault.other)
        self._network.cut(fault.other, fault.who)
        await anyio.sleep(fault.seconds)
        self._network.join(fault.who, fault.other)
        self._network.join(fault.other, fault.who)

    async def cut(self, fault: Fault) -> None:
        """One process does not hear another."""
        self._network.cut(fault.who, fault.other)
        await anyio.sleep(fault.seconds)
        self._network.join(fault.who, fault.other)

    async def deafen(self, fault: Fault) -> None:
        """A process hears everything late, and then all at once."""
        self._network.deafen(fault.who, fault.seconds)
        await anyio.sleep(fault.seconds)

    async def lossy(self, fault: Fault) -> None:
        """A share of all messages is lost."""
        self._network.drop = fault.amount
        await anyio.sleep(fault.seconds)
        self._network.drop = 0.0

    async def doubling(self, fault: Fault) -> None:
        """A share of all messages comes twice."""
        self._network.duplicate = fault.amount
        await anyio.sleep(fault.seconds)
        self._network.duplicate = 0.0

    async def slow(self, fault: Fault) -> None:
        """Messages take long, and overtake each other."""
        self._network.slow(fault.amount)
        await anyio.sleep(fault.seconds)
        self._network.slow(0.0)

    async def broker(self, fault: Fault) -> None:
        """The broker stops, and what is under way is lost."""
        self._broker.stop()
        await anyio.sleep(fault.seconds)
        self._broker.start()

    async def stall(self, fault: Fault) -> None:
        """A device comes to nothing for a while."""
        self._processes[fault.who].stall(fault.seconds)
        await anyio.sleep(fault.seconds)

    hang = stall
    """Compiles come to nothing for a while."""

    async def forge(self, fault: Fault) -> None:
        """A stranger says what others said before, halves of it, and noise."""
        if self._stranger is None:
            self._stranger = self._broker.connect("stranger")
        for _ in range(int(fault.amount)):
            if self._seen and self._broker.up:
                message = self._rng.choice(self._seen)
                if not message.subject.startswith("_INBOX"):
                    self._broker.deliver(self._stranger, RawMessage(message.subject, self._forged(message.data), None))
            await anyio.sleep(0.005)

    def _forged(self, data: bytes) -> bytes:
        match self._rng.randrange(3):
            case 0:
                return data
            case 1:
                return data[: self._rng.randrange(len(data) + 1)]
            case _:
                return self._rng.randbytes(self._rng.randrange(200))
