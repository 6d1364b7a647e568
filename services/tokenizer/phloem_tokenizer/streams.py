"""Detokeniser streams: for every live request, token frames in, text frames out. Plain code, no bus, no clock.

Life of a stream: `open` -> frames of each child until its end -> `cancel` (the gateway sends one at every end).

    event                                   effect
    open, rid unknown                       new stream, replaying what the gateway holds
    open, same attempt                      the same reply, nothing else
    open, lower attempt                     stale
    open, higher attempt                    adopt: the stream is rebuilt from what the gateway holds
    cancel(attempt)                         stream of that attempt or lower is dropped; a tombstone refuses late opens
    deadline passed, and no cancel came     the stream is dropped: the bus may lose a cancel
    its gateway names it no more, twice     the stream is dropped: it came of a message that was late, or played back
    frame of another attempt, unknown rid   ignored and counted
    frame that overlaps what was taken      the new part is taken
    frame that leaves a gap                 the stream is lost: the gateway is told and opens it again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import Cancel, End, Held, Live, OpenStream, Output, StopAt, TextFrame, TokenFrame
from phloem_tokenizer.choice import Choice
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.stops import StopSet
from phloem_tokenizer.vocab import Vocabulary

MAX_STREAMS = 8192  # a stream is a few hundred bytes per child; more live requests than one tokenizer keeps up with
MAX_CHILDREN = 1024  # choices of one request; the gateway's own limit is lower
TOMBSTONE_S = 60.0  # longer than an open can be on its way
MAX_TOMBSTONES = 65_536  # a minute of 1,000 requests a second; beyond it the oldest goes, and a late open may leak
OVERDUE_S = 5.0  # how long after its deadline a stream waits for the gateway's cancel, which may be on its way
BUSY_RETRY_MS = 1000
MOST_MISSES = 2


@dataclass(slots=True)
class Stream:
    """One live request."""

    attempt: int
    gateway: str
    choices: list[Choice]
    until: float  # when it is dropped, cancelled or not
    missed: int = 0  # lists of its gateway, in a row, that did not name it


@dataclass(slots=True)
class Effects:
    """What is to be sent."""

    text: dict[str, list[TextFrame]] = field(default_factory=dict)  # by gateway instance
    stops: list[StopAt] = field(default_factory=list)  # to the scheduler
    lost: dict[str, dict[bytes, int]] = field(default_factory=dict)  # by gateway instance: rids and their attempts


class Streams:
    """All streams of one tokenizer instance."""

    def __init__(self, vocabulary: Vocabulary, eos_ids: Iterable[int], max_streams: int = MAX_STREAMS) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(eos_ids)
        self._max_streams = max_streams
        self._streams: dict[bytes, Stream] = {}
        self._tombstones: dict[bytes, tuple[int, float]] = {}  # rid -> attempt, expiry; oldest first
        self._named: dict[str, set[bytes]] = {}  # by gateway, in the parts of the list that it is giving
        self.ignored: Counter[str] = Counter()  # frames that were not for us, by reason

    def __len__(self) -> int:
        return len(self._streams)

    def live(self) -> list[bytes]:
        """Rids of all streams, oldest first."""
        return list(self._streams)

    def gateway_of(self, rid: bytes) -> str | None:
        """Where a stream's text goes."""
        stream = self._streams.get(rid)
        return None if stream is None else stream.gateway

    def open(self, request: OpenStream, now: float) -> Effects:
        """Make or adopt a stream. `now` is in seconds on any steady clock.

        What the gateway holds may end a choice at once; the frames that say so are in the result. Raises Refused:
        "stale", "busy", or "invalid_request" naming the field.
        """
        self._bury(now)
        cancelled = self._tombstones.get(request.rid)
        if cancelled is not None and request.attempt <= cancelled[0]:
            raise Refused("stale", "this request was cancelled")
        known = self._streams.get(request.rid)
        if known is not None and request.attempt < known.attempt:
            raise Refused("stale", "a later attempt of this request is open")
        if known is not None and request.attempt == known.attempt:
            return Effects()
        if known is None and len(self._streams) >= self._max_streams:
            raise Refused("busy", f"{self._max_streams} streams are open", retry_after_ms=BUSY_RETRY_MS)
        until = now + request.deadline_ms / 1000 + OVERDUE_S if request.deadline_ms > 0 else float("inf")
        stream = Stream(request.attempt, request.gateway, self._choices(request), until)
        self._streams[request.rid] = stream
        effects = Effects()
        for child, choice in enumerate(stream.choices):
            self._release_replayed(request, child, choice, effects)
        return effects

    def cancel(self, message: Cancel, now: float) -> None:
        """The gateway is done with this attempt and lower ones."""
        self._bury(now)
        stream = self._streams.get(message.rid)
        if stream is not None and stream.attempt <= message.attempt:
            del self._streams[message.rid]
        former = self._tombstones.pop(message.rid, (0, 0.0))[0]
        self._tombstones[message.rid] = (max(message.attempt, former), now + TOMBSTONE_S)
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def drop_overdue(self, now: float) -> int:
        """Forget streams that their gateway should have cancelled long ago. How many there were."""
        rids = [rid for rid, stream in self._streams.items() if stream.until <= now]
        for rid in rids:
            del self._streams[rid]
        return len(rids)

    def drop_gateway(self, gateway: str) -> int:
        """A gateway is gone, or its link is: forget its streams (a living one opens them again). How many there were."""
        self._named.pop(gateway, None)
        rids = [rid for rid, stream in self._streams.items() if stream.gateway == gateway]
        for rid in rids:
            del self._streams[rid]
        return len(rids)

    def named(self, gateway: str, live: Live) -> int:
        """A part of the list of what a gateway holds here; how many streams were dropped because they are not in it, twice in a row.

        Once may be a race: a stream may be opened while the list is on its way.
        """
        named = self._named.setdefault(gateway, set())
        if live.part == 0:
            named.clear()
        named.update(request.rid for request in live.requests)
        if live.part + 1 < live.parts:
            return 0
        del self._named[gateway]
        dropped = []
        for rid, stream in self._streams.items():
            if stream.gateway == gateway:
                stream.missed = 0 if rid in named else stream.missed + 1
                if stream.missed >= MOST_MISSES:
                    dropped.append(rid)
        for rid in dropped:
            del self._streams[rid]
        return len(dropped)

    def hand_back(self) -> dict[str, dict[bytes, int]]:
        """Give up every stream: rids and attempts by gateway, which are to be told that they are lost."""
        lost: dict[str, dict[bytes, int]] = {}
        for rid, stream in self._streams.items():
            lost.setdefault(stream.gateway, {})[rid] = stream.attempt
        self._streams.clear()
        return lost

    def take(self, output: Output) -> Effects:
        """Take one message of the scheduler."""
        effects = Effects()
        for frame in output.frames:
            self._take(frame, effects)
        return effects

    def _take(self, frame: TokenFrame, effects: Effects) -> None:
        stream = self._streams.get(frame.rid)
        if stream is None:
            self.ignored["unknown"] += 1
        elif frame.attempt != stream.attempt or not 0 <= frame.child < len(stream.choices):
            self.ignored["mismatch"] += 1
        else:
            self._take_for(stream, stream.choices[frame.child], frame, effects)

    def _take_for(self, stream: Stream, choice: Choice, frame: TokenFrame, effects: Effects) -> None:
        if choice.ended:
            self.ignored["ended"] += 1
            if choice.restored_stop is not None:  # the scheduler came after that end
                effects.stops.append(StopAt(frame.rid, frame.attempt, frame.child, choice.count))
        elif frame.offset > choice.count:
            self.ignored["gap"] += 1
            effects.lost.setdefault(stream.gateway, {})[frame.rid] = stream.attempt
            del self._streams[frame.rid]
        else:
            text, keep = choice.take(frame)
            effects.text.setdefault(stream.gateway, []).append(text)
            if keep is not None:
                effects.stops.append(StopAt(frame.rid, frame.attempt, frame.child, keep))

    def _choices(self, request: OpenStream) -> list[Choice]:
        if not 1 <= request.n <= MAX_CHILDREN:
            raise Refused("invalid_request", f"n is {request.n}; from 1 to {MAX_CHILDREN}", "n")
        if len(request.have) not in (0, request.n):
            raise Refused("invalid_request", f"{len(request.have)} held outputs for {request.n} choices", "have")
        stops = StopSet(request.stop)
        choices = [
            Choice(
                self._vocabulary,
                self._eos_ids,
                stops,
                include_stop=request.include_stop,
                skip_special_tokens=request.skip_special_tokens,
                logprobs=request.logprobs,
            )
            for _ in range(request.n)
        ]
        for choice, held in zip(choices, request.have, strict=False):
            choice.restore(self._held_ids(held, request.max_tokens), held.ended)
        return choices

    def _held_ids(self, held: Held, max_tokens: int) -> list[int]:
        try:
            ids = list(unpack_ids(held.ids))
        except ValueError:
            raise Refused("invalid_request", "held ids are not 32-bit numbers", "have") from None
        if max_tokens and len(ids) > max_tokens:
            raise Refused("invalid_request", f"{len(ids)} held tokens; at most {max_tokens}", "have")
        return ids

    def _release_replayed(self, request: OpenStream, child: int, choice: Choice, effects: Effects) -> None:
        """A stop string that is complete in the held ids ends the choice now: its end had not reached the gateway.

        The scheduler, which opens this attempt later, learns of it when it sends output of the choice.
        """
        if choice.ended or choice.restored_stop is None:
            return
        choice.ended = True
        frame = TextFrame(request.rid, request.attempt, child, choice.count, b"", "", End("stop", choice.restored_stop))
        effects.text.setdefault(request.gateway, []).append(frame)

    def _bury(self, now: float) -> None:
        """Forget tombstones that have expired; they are in order of expiry."""
        while self._tombstones:
            rid, (_, expiry) = next(iter(self._tombstones.items()))
            if expiry > now:
                return
            del self._tombstones[rid]
