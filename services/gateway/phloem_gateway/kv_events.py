"""The bus's side of cache events: listens and keeps the scheduler's watch alive while somebody reads, and tells all who read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskGroup

from phloem_bus.errors import BusError
from phloem_bus.node import Received
from phloem_bus.presence import Peer, Presence
from phloem_proto.messages import KvEvents, KvWatch, KvWatchReply
from phloem_proto.subjects import KV, Role

from .backends import Backends
from .errors import ApiError, unavailable
from .kv_stream import KvStream, well_formed

MAX_STREAMS = 16
"""Clients that read events: routers and people, not users. Each may leave `kv_stream.MAX_BYTES` unread."""
WATCH_S = 3.0
"""How often the watch is renewed; it lasts three times as long."""
RETRY_S = 0.5
"""How soon again after a failure."""
SNAPSHOT_S = 1.0
"""Least time between two snapshots: each is the whole cache."""
LAPSE_S = 8.0
"""A watch lasts 10 s. What is sent later than this, and may take `CALL_S`, can come too late to renew it: events may be missing, and
streams end."""
CALL_S = 2.0
OPEN_S = 5.0
"""How long a new stream may wait for its watch."""


class KvReader:
    """A client's stream as its edge reads it: `opened`, then `batch` inside ``scope``, which is cancelled when the stream ends."""

    def __init__(self, stream: KvStream) -> None:
        self.stream = stream
        self.scope = anyio.CancelScope()
        self._watched = anyio.Event()
        self._news = anyio.Event()

    async def opened(self) -> None:
        """Return once events are being published. Raises `ApiError` if that can't be."""
        with anyio.move_on_after(OPEN_S) as limit:
            await self._watched.wait()
        self.check()
        if limit.cancelled_caught:
            raise unavailable("The scheduler did not answer.")

    def check(self) -> None:
        """Raises `ApiError` if the stream has ended."""
        if self.stream.error is not None:
            raise self.stream.error

    async def batch(self) -> KvEvents:
        """The next batch. Raises `ApiError` once the stream has ended."""
        while (batch := self.stream.take()) is None:
            self.check()
            self._news = anyio.Event()
            await self._news.wait()
        return batch

    def watched(self) -> None:
        """Events are being published."""
        self._watched.set()

    def offer(self, batch: KvEvents) -> None:
        """A batch was published."""
        if self.stream.offer(batch):
            self._news.set()
            if self.stream.error is not None:
                self.scope.cancel()

    def end(self, error: ApiError) -> None:
        """Nothing more comes."""
        self.stream.end(error)
        self._watched.set()
        self._news.set()
        self.scope.cancel()


class KvHub:
    """Joins the group of cache events while there are readers. `run` must run beside the edges."""

    def __init__(self, presence: Presence, backends: Backends) -> None:
        self._node = presence.node
        self._backends = backends
        self._readers: list[KvReader] = []
        self._wake = anyio.Event()
        self._source: tuple[object, ...] | None = None
        """Who publishes for us (instance, incarnation, term), since when we are connected, and what we dropped: see `_note`."""
        self._confirmed = 0.0
        self._snapshot_at = float("-inf")
        self._node.on(KvEvents, self._on_events)
        presence.on_join(Role.SCHEDULER, self._on_scheduler)
        presence.on_change(Role.SCHEDULER, self._on_scheduler)

    @contextmanager
    def reader(self, workers: Collection[str] = (), *, snapshot: bool = False) -> Iterator[KvReader]:
        """A new stream; leaving the block ends it.

        Raises:
            ApiError: there are too many, or nobody to tell events.
        """
        self._backends.require_scheduler()
        if len(self._readers) >= MAX_STREAMS:
            raise ApiError(
                "rate_limit_exceeded", f"There are {MAX_STREAMS} streams of events already.", retry_after_s=1.0
            )
        made = KvReader(KvStream(workers, snapshot=snapshot))
        self._readers.append(made)
        self._wake.set()
        try:
            yield made
        finally:
            self._readers.remove(made)
            self._wake.set()

    @property
    def readers(self) -> int:
        """How many clients read."""
        return len(self._readers)

    def close(self, message: str) -> None:
        """End every stream with ``service_unavailable``: the server stops."""
        self._end_all(unavailable(message))

    async def run(self) -> None:
        """Listen whenever there are readers, until cancelled."""
        while True:
            self._wake = anyio.Event()
            if not self._readers:
                await self._wake.wait()
                continue
            try:
                async with anyio.create_task_group() as tasks:
                    await self._serve(tasks)
                    tasks.cancel_scope.cancel()
            except* BusError:
                self._end_all(unavailable("The message bus is not reachable."))
                await anyio.sleep(RETRY_S)

    async def _serve(self, tasks: TaskGroup) -> None:
        """Join the group and renew the watch until nobody reads."""
        await tasks.start(self._node.join, KV, KvEvents)
        self._source = None
        self._confirmed = anyio.current_time()
        while self._readers:
            self._wake = anyio.Event()
            wait = await self._renew()
            with anyio.move_on_after(wait):
                await self._wake.wait()

    async def _renew(self) -> float:
        """Renew the watch; returns in how many seconds at the latest to do so again."""
        leader, now = self._backends.leader(), anyio.current_time()
        if now > self._confirmed + LAPSE_S:
            self._end_all(unavailable("The scheduler does not answer: subscribe again, with a snapshot."))
            self._confirmed = now
        if leader is not None:
            self._note(leader)
            if await self._watch(leader, snapshot=now >= self._snapshot_at + SNAPSHOT_S):
                self._confirmed = now
                for reader in self._readers:
                    reader.watched()
                owed = any(reader.stream.owed for reader in self._readers)
                return max(self._snapshot_at + SNAPSHOT_S - now, 0.0) if owed else WATCH_S
        return RETRY_S

    def _note(self, leader: Peer) -> None:
        """Another leader, a break of our connection, or a full mailbox: batches may have been lost without a gap to tell it."""
        source = leader.instance, leader.incarnation, leader.term, self._node.bus.connected_since, self._node.dropped
        if self._source not in (None, source):
            for reader in self._readers:
                reader.stream.lost()
        self._source = source

    async def _watch(self, leader: Peer, *, snapshot: bool) -> bool:
        """Ask for events, and for a snapshot if that may be and somebody waits for one. Returns whether the leader agreed."""
        owed = [reader.stream for reader in self._readers if reader.stream.owed] if snapshot else []
        for stream in owed:
            stream.owed = False  # before the call: what is lost from here on must be asked for again
        try:
            message = KvWatch(self._node.instance, bool(owed))
            reply = await self._node.call(Role.SCHEDULER, leader.instance, message, KvWatchReply, timeout=CALL_S)
        except BusError:
            agreed = False
        else:
            agreed = reply.error is None
        if owed:
            self._snapshot_at = anyio.current_time()
        for stream in owed if not agreed else ():
            stream.owed = True
        return agreed

    def _on_events(self, received: Received[KvEvents]) -> None:
        batch = received.message
        if self._source is None or (received.sender.instance, received.sender.incarnation) != self._source[:2]:
            self._node.refuse("incarnation")
            return
        if not well_formed(batch):
            self._node.refuse("malformed")
            return
        for reader in self._readers:
            owed = reader.stream.owed
            reader.offer(batch)
            if reader.stream.owed and not owed:
                self._wake.set()

    def _on_scheduler(self, _: Peer) -> None:
        self._wake.set()

    def _end_all(self, error: ApiError) -> None:
        for reader in self._readers:
            reader.end(error)
