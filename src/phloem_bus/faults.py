"""Seeded trouble for `LocalBroker`: delay, loss, partitions, and so reordering between subscriptions."""

from __future__ import annotations

import heapq
import random

import anyio

from .bus import RawMessage
from .mailbox import Mailbox


class Faults:
    """Decides what happens to each delivery. Equal seeds and equal traffic give equal faults.

    Messages of one publisher to one subscription stay in order; everything else may overtake.

    Args:
        rng: the only source of chance.
        delay_s: (least, most) seconds a delivery takes.
        drop: share of deliveries that are lost, 0..1.
        duplicate: share of deliveries that come twice (NATS never does this; links must survive it all the same).
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        delay_s: tuple[float, float] = (0.0, 0.0),
        drop: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        self.rng = rng
        self.delay_s = delay_s
        self.drop = drop
        self.duplicate = duplicate
        self.lost = 0
        self._due: list[tuple[float, int, Mailbox, RawMessage]] = []
        self._count = 0
        self._lanes: dict[tuple[str, Mailbox], float] = {}
        self.duplicated = 0
        self._cut: list[tuple[str, str]] = []
        self._changed = anyio.Event()

    def partition(self, one: str, other: str) -> None:
        """Lose everything between the two named connections, both ways, until `heal`."""
        self._cut.append((one, other))

    def heal(self) -> None:
        """End all partitions, loss and duplication. Delays stay."""
        self._cut.clear()
        self.drop = 0.0
        self.duplicate = 0.0

    def lose_all(self) -> None:
        """Lose what is under way."""
        self.lost += len(self._due)
        self._due.clear()

    def pass_on(self, sender: str, receiver: str, mailbox: Mailbox, message: RawMessage) -> None:
        """Deliver ``message`` now, later, twice, or never."""
        if (sender, receiver) in self._cut or (receiver, sender) in self._cut or self.rng.random() < self.drop:
            self.lost += 1
            return
        twice = self.rng.random() < self.duplicate
        self.duplicated += twice
        for _ in range(2 if twice else 1):
            self._schedule(sender, self.takes(receiver), mailbox, message)

    def takes(self, receiver: str) -> float:
        """Seconds that a delivery to ``receiver`` takes; drawn anew for each."""
        return self.rng.uniform(*self.delay_s)

    async def run(self) -> None:
        """Hand over what is due until cancelled."""
        while True:
            self._release(anyio.current_time())
            self._changed = anyio.Event()
            deadline = self._due[0][0] if self._due else float("inf")
            with anyio.CancelScope(deadline=deadline):
                await self._changed.wait()

    def _release(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, mailbox, message = heapq.heappop(self._due)
            mailbox.put(message)

    def _schedule(self, sender: str, takes_s: float, mailbox: Mailbox, message: RawMessage) -> None:
        now = anyio.current_time()
        self._release(now)
        lane = (sender, mailbox)
        due = max(now + takes_s, self._lanes.get(lane, 0.0))
        if due <= now:
            mailbox.put(message)
            return
        if len(self._lanes) > 4096:  # lanes whose time is over order nothing any more
            self._lanes = {key: at for key, at in self._lanes.items() if at > now}
        self._lanes[lane] = due
        self._count += 1
        heapq.heappush(self._due, (due, self._count, mailbox, message))
        self._changed.set()
