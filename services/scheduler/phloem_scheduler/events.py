"""What enters and leaves the caches, told to whoever watches: the KV events that routers of this field consume.

A block is a page. Its hash covers the namespace, everything before it and its own tokens (64 bits of BLAKE2b, chained), so equal hashes mean
equal prefixes on any worker. Nothing is hashed or kept while nobody watches.

A snapshot of a large cache is made a part per pass. What changes meanwhile is told after it, although the snapshot may show it already: who
applies everything in order, and takes stored blocks that are known and removed ones that are not as they come, has what is there.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator

from phloem_proto.messages import KvEvent, KvEvents

from .node import TOKEN_BYTES, Namespace, Node
from .shelf import Shelf
from .snapshot import Snapshot
from .tree import RadixTree

WATCH_S = 10.0
# Blocks in one message, and tokens: half a megabyte of ids, so that it can travel whatever the page size.
BLOCKS_PER_MESSAGE = 8192
TOKENS_PER_MESSAGE = 131_072
# Blocks that one pass hashes for a snapshot: some 5 ms.
BLOCKS_PER_PASS = 4096
# Gateways that watch; each costs one entry.
MOST_WATCHERS = 64
_MASK = 2**64 - 1


class Stream:
    """Events of one worker's session."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.seq = 0
        self.pending: list[KvEvent] = []
        self.blocks = 0


class Events:
    """Collects events while there are watchers; `take` gives them as messages.

    Args:
        incarnation: of this scheduler; each session of a worker gets one of its own from it.
    """

    def __init__(self, incarnation: int) -> None:
        self.paused = False  # snapshots wait: what was published before is not sent yet
        self._incarnation = incarnation
        self._sessions = 0
        self._streams: dict[Shelf, Stream] = {}
        self._watchers: dict[str, float] = {}
        self._out: list[KvEvents] = []
        self._tree: RadixTree | None = None
        self._asked: dict[Shelf, None] = {}  # whose snapshots are to be made
        self._snapshot: Snapshot | None = None  # the one that is being made

    @property
    def watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watchers)

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is being made and not paused: each `take` goes on with it."""
        return not self.paused and (self._snapshot is not None or bool(self._asked))

    # --- Workers ------------------------------------------------------------------------------------------------------------

    def joined(self, shelf: Shelf, worker: str) -> None:
        """A worker's session begins, with an empty cache."""
        self._sessions += 1
        self._streams[shelf] = Stream(worker, (self._incarnation + self._sessions * 0x9E3779B97F4A7C15) & _MASK)

    def gone(self, shelf: Shelf) -> None:
        """Its session is over: all it had is lost at once, however long the tree takes to forget it."""
        self.cleared(shelf)
        self._asked.pop(shelf, None)
        if self._snapshot is not None and self._snapshot.shelf is shelf:
            self._snapshot = None
        stream = self._streams.pop(shelf, None)
        if stream is not None:
            self._flush(shelf, stream)

    def cleared(self, shelf: Shelf) -> None:
        """shelf is empty now."""
        stream = self._streams.get(shelf)
        if stream is not None and self._watchers:
            stream.pending, stream.blocks = [KvEvent("cleared")], 0

    # --- The tree (see `tree.Watcher`) ----------------------------------------------------------------------------------------

    def stored(self, shelf: Shelf, node: Node, start: int) -> None:
        """Pages of node from `start` on are on shelf now."""
        stream = self._streams.get(shelf)
        if stream is not None and self._tree is not None:
            stream.pending.append(_stored(node, start, self._tree.page_size))
            self._count(shelf, stream, len(stream.pending[-1].hashes) // 8)

    def removed(self, shelf: Shelf, node: Node, start: int) -> None:
        """They are about to leave it."""
        stream = self._streams.get(shelf)
        if stream is not None and self._tree is not None:
            stream.pending.append(KvEvent("removed", hashes_of(node, self._tree.page_size)[start:].tobytes()))
            self._count(shelf, stream, len(stream.pending[-1].hashes) // 8)

    def _count(self, shelf: Shelf, stream: Stream, blocks: int) -> None:
        stream.blocks += blocks
        if stream.blocks >= self._most:
            self._flush(shelf, stream)

    @property
    def _most(self) -> int:
        """Blocks after which a message is closed."""
        assert self._tree is not None
        return max(1, min(BLOCKS_PER_MESSAGE, TOKENS_PER_MESSAGE // self._tree.page_size))

    # --- Watchers -------------------------------------------------------------------------------------------------------------

    def watch(self, watcher: str, snapshot: bool, tree: RadixTree, now: float) -> bool:
        """watcher listens for another `WATCH_S`. False if too many do."""
        if watcher not in self._watchers and len(self._watchers) >= MOST_WATCHERS:
            return False
        self._watchers[watcher] = now + WATCH_S
        self.attach(tree)
        if snapshot:
            first = not self.under_way
            self._asked.update(dict.fromkeys(self._streams))
            if first:
                self._go_on()
        return True

    def attach(self, tree: RadixTree) -> None:
        """Listen to tree, if anybody watches."""
        if self._watchers:
            self._tree = tree
            tree.watcher = self

    def _go_on(self) -> None:
        """Make the next part of the snapshots that were asked for; all of them, if they are small."""
        left = BLOCKS_PER_PASS
        while left > 0 and self.under_way:
            left -= self._tell(self._snapshot or self._begin(), left)

    def _begin(self) -> Snapshot:
        assert self._tree is not None
        shelf = next(iter(self._asked))
        del self._asked[shelf]
        self._flush(shelf, self._streams[shelf])
        self._snapshot = Snapshot(shelf, self._tree)
        return self._snapshot

    def _tell(self, snapshot: Snapshot, most: int) -> int:
        """One message with the next part of a snapshot; returns what it cost (see `Snapshot.part`)."""
        assert self._tree is not None
        before = snapshot.cost
        events = [_stored(node, 0, self._tree.page_size) for node in snapshot.part(min(most, self._most))]
        if events or not snapshot.begun:
            self._out.append(self._message(self._streams[snapshot.shelf], events, 2 if snapshot.begun else 1))
            snapshot.begun = True
        if snapshot.done:
            self._snapshot = None
        return snapshot.cost - before

    def interrupted(self) -> None:
        """What was published may not have reached everybody: each stream shows a gap, at once, so that who wants to know asks for a snapshot."""
        if not self._watchers:
            return
        self._snapshot = None
        self._asked.clear()
        for stream in self._streams.values():
            stream.seq += 2  # one is missing
            self._out.append(self._message(stream, [], 0))

    def expire(self, now: float) -> None:
        """Forget watchers that did not renew; without any, nothing is collected."""
        for watcher in [watcher for watcher, until in self._watchers.items() if until <= now]:
            del self._watchers[watcher]
        if not self._watchers and self._tree is not None:
            self._tree.watcher = None
            self._tree = None
            self._out = []
            self._asked.clear()
            self._snapshot = None
            for stream in self._streams.values():
                stream.pending, stream.blocks = [], 0

    # --- Out ------------------------------------------------------------------------------------------------------------------

    def take(self) -> Iterable[KvEvents]:
        """Messages to publish, in order."""
        if not self._watchers:
            return ()
        self._go_on()
        for shelf, stream in self._streams.items():
            self._flush(shelf, stream)
        out, self._out = self._out, []
        return out

    def _flush(self, shelf: Shelf, stream: Stream) -> None:
        """Tell what has changed, unless it has to wait for the end of a snapshot."""
        if self._snapshot is not None and self._snapshot.shelf is shelf:
            return
        for events in runs(stream.pending, self._most) if stream.pending else ():
            stream.seq += 1
            self._out.append(self._message(stream, events, 0))
        stream.pending, stream.blocks = [], 0

    def _message(self, stream: Stream, events: list[KvEvent], snapshot: int) -> KvEvents:
        assert self._tree is not None
        return KvEvents(stream.worker, stream.incarnation, stream.seq, self._tree.page_size, tuple(events), snapshot)


def runs(events: list[KvEvent], most: int) -> Iterator[list[KvEvent]]:
    """events in order, in runs of about `most` blocks."""
    run: list[KvEvent] = []
    blocks = 0
    for event in events:
        run.append(event)
        blocks += len(event.hashes) // 8
        if blocks >= most:
            yield run
            run, blocks = [], 0
    if run:
        yield run


def _stored(node: Node, start: int, page_size: int) -> KvEvent:
    hashes = hashes_of(node, page_size)
    unit = page_size * TOKEN_BYTES
    parent = hashes[start - 1] if start else _last(node.parent, page_size)
    ids = b"" if node.namespace[0] else node.key[start * unit :]
    return KvEvent("stored", hashes[start:].tobytes(), parent, ids)


def _last(node: Node | None, page_size: int) -> int:
    return 0 if node is None or node.parent is None else hashes_of(node, page_size)[-1]


def hashes_of(node: Node, page_size: int) -> array[int]:
    """Hashes of node's pages, computed once and kept there."""
    path = []
    step = node
    unit = page_size * TOKEN_BYTES
    while step.parent is not None and (step.hashes is None or len(step.hashes) * unit < len(step.key)):
        path.append(step)
        step = step.parent
    for part in reversed(path):
        assert part.parent is not None
        hashes = part.hashes = part.hashes if part.hashes is not None else array("Q")
        last = hashes[-1] if hashes else (part.parent.hashes[-1] if part.parent.hashes else seed_of(part.namespace))
        for at in range(len(hashes) * unit, len(part.key), unit):
            digest = hashlib.blake2b(last.to_bytes(8, "little") + part.key[at : at + unit], digest_size=8).digest()
            last = int.from_bytes(digest, "little")
            hashes.append(last)
    return node.hashes if node.hashes is not None else array("Q")


def seed_of(namespace: Namespace) -> int:
    """What the first block of a namespace is chained to; 0 for the common one."""
    if namespace == ("", ""):
        return 0
    salt, extra = (hashlib.blake2b(part.encode(), digest_size=16).digest() for part in namespace)
    return int.from_bytes(hashlib.blake2b(salt + extra, digest_size=8).digest(), "little")
