"""One client's view of the cache events: which batches it gets, in what order, and when it needs a snapshot. Sans-I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from phloem_proto.messages import KvEvents

from .errors import ApiError

MAX_BYTES = 32 * 1024 * 1024
"""Events that a client may leave unread. A snapshot of four million cached tokens comes to two thirds of that; the batches
themselves are shared by all streams."""
MAX_WORKERS = 1024
"""Workers whose place in the sequence a stream remembers; one that was forgotten is told by a snapshot again."""
BATCH_BYTES = 128
"""What a stored batch weighs beside its events."""
CHANGE, SNAPSHOT, CONTINUED = 0, 1, 2
"""`KvEvents.snapshot`."""


class KvStream:
    """Takes what is published and keeps what the client gets.

    With ``snapshot``, batches of a worker begin with its snapshot, each follows the one before or is the first of the next incarnation,
    and after a loss nothing is taken until a snapshot came. Without it, changes pass as they come.

    Args:
        workers: only these instances; empty = all.
        snapshot: begin with all that is cached.
        max_bytes: most bytes unread.
    """

    def __init__(self, workers: Collection[str] = (), *, snapshot: bool = False, max_bytes: int = MAX_BYTES) -> None:
        self.snapshot = snapshot
        self.owed = snapshot
        """A snapshot must be asked for."""
        self.error: ApiError | None = None
        """Why it ended."""
        self._workers = frozenset(workers)
        self._max_bytes = max_bytes
        self._places: dict[str, tuple[int, int]] = {}
        """By worker: incarnation and sequence number of the last batch taken."""
        self._in_snapshot: dict[str, None] = {}
        """Workers whose snapshot is being taken."""
        self._batches: deque[KvEvents] = deque()
        self._bytes = 0

    def offer(self, batch: KvEvents) -> bool:
        """A batch was published. Returns whether there is news for the client: a batch, or the end."""
        if self.error is not None or not self._wanted(batch):
            return False
        self._batches.append(batch)
        self._bytes += weight(batch)
        if self._bytes > self._max_bytes:
            self.end(
                ApiError(
                    "rate_limit_exceeded",
                    "Events were not read fast enough, and some are lost: subscribe again, with a snapshot.",
                    retry_after_s=1.0,
                )
            )
        return True

    def take(self) -> KvEvents | None:
        """The next batch for the client."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._bytes -= weight(batch)
        return batch

    def lost(self) -> None:
        """Batches may have been lost on the way to us: nothing is taken until a snapshot came, if the client wanted one."""
        if self.snapshot:
            self._places.clear()
            self._in_snapshot.clear()
            self.owed = True

    def end(self, error: ApiError) -> None:
        """Nothing more comes; what is unread is dropped."""
        if self.error is None:
            self.error = error
            self._batches.clear()
            self._bytes = 0

    def _wanted(self, batch: KvEvents) -> bool:
        if self._workers and batch.worker not in self._workers:
            return False
        if not self.snapshot:
            return batch.snapshot == CHANGE
        if batch.snapshot == SNAPSHOT:
            return self._begins(batch)
        if batch.snapshot == CONTINUED:
            return batch.worker in self._in_snapshot
        return self._follows(batch)

    def _begins(self, batch: KvEvents) -> bool:
        """Whether a snapshot tells this client something: others ask for snapshots too."""
        place = self._places.get(batch.worker)
        if place is not None and place[0] == batch.incarnation and batch.seq <= place[1]:
            self._in_snapshot.pop(batch.worker, None)
            return False
        self._in_snapshot[batch.worker] = None
        self._remember(batch)
        return True

    def _follows(self, batch: KvEvents) -> bool:
        """Whether a change comes right after what the client has. Of a worker that it does not know, none does: numbers count only what was
        published, so that even the first may come after much that was not."""
        place = self._places.get(batch.worker)
        if place is not None and place[0] == batch.incarnation and batch.seq <= place[1]:
            return False  # in the snapshot
        if place is not None and batch.seq == (place[1] + 1 if place[0] == batch.incarnation else 1):
            self._remember(batch)
            return True
        self._places.pop(batch.worker, None)
        self._in_snapshot.pop(batch.worker, None)
        self.owed = True
        return False

    def _remember(self, batch: KvEvents) -> None:
        self._places.pop(batch.worker, None)
        self._places[batch.worker] = batch.incarnation, batch.seq
        while len(self._places) > MAX_WORKERS:
            forgotten = next(iter(self._places))
            del self._places[forgotten]
            self._in_snapshot.pop(forgotten, None)


def weight(batch: KvEvents) -> int:
    """About how many bytes a stored batch holds."""
    return BATCH_BYTES + sum(BATCH_BYTES + len(event.hashes) + len(event.ids) for event in batch.events)


def well_formed(batch: KvEvents) -> bool:
    """Whether hashes and ids are whole, and of a kind that is known."""
    return batch.snapshot in (CHANGE, SNAPSHOT, CONTINUED) and all(
        event.kind in ("stored", "removed", "cleared") and len(event.hashes) % 8 == 0 and len(event.ids) % 4 == 0
        for event in batch.events
    )
