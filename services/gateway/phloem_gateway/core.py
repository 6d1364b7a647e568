"""The life of requests at the gateway, without I/O: frames in, ends exactly once, what to open again, what to cancel.

First end wins: a choice's end comes with a detokeniser's frame, or from `end` (deadline, abort, failed recovery). Whatever arrives later
for that choice is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import Cancel, End, LiveRequest, Text, TextFrame
from phloem_proto.messages import Live as LiveMessage
from phloem_proto.subjects import Role

from .live import Live

UNKNOWN_TWICE = 2
"""A request that two reconciles in a row did not find is opened again: one miss may be a race with its `Open`."""
BEHIND_OFTEN = 4
"""A choice that as many reconciles in a row, so for 3 s, found behind its scheduler and where it was is opened again: its frames are lost.
Counts, not clocks: a loop that stalls sees fewer."""


class Core:
    """All live requests of a gateway.

    Args:
        byte_budget: bytes per choice that a client may leave unread before it is cut.
    """

    def __init__(self, byte_budget: int) -> None:
        self.byte_budget = byte_budget
        self.live: dict[bytes, Live] = {}
        self.dropped: dict[str, int] = {}
        """Frames that changed nothing, by reason."""

    # --- Coming and going -------------------------------------------------------------------------------------------

    def add(self, live: Live) -> None:
        """A request whose first attempt is about to be made."""
        self.live[live.rid] = live

    def remove(self, rid: bytes) -> list[tuple[Role, str, Cancel]]:
        """Forget a request (its client has everything, or is gone) and say whom to tell. Calling it again returns nothing."""
        live = self.live.pop(rid, None)
        if live is None:
            return []
        told = self.settle(live)
        live.ticket.release()
        return told

    def settle(self, live: Live) -> list[tuple[Role, str, Cancel]]:
        """A request needs nothing more from others: free its credit and say whom to tell, once. Its client may still be reading."""
        if live.settled:
            return []
        live.settled = True
        live.ticket.finished()
        cancel = Cancel(live.rid, live.attempt)
        told: list[tuple[Role, str, Cancel]] = []
        if live.scheduler is not None:
            told.append((Role.SCHEDULER, live.scheduler[0], cancel))
        if live.detokeniser:
            told.append((Role.TOKENIZER, live.detokeniser, cancel))
        return told

    def end(self, live: Live, end: End) -> bool:
        """End every choice that has no end yet. Returns whether that changed anything."""
        changed = False
        for index, child in enumerate(live.children):
            if child.end is None:
                child.end, changed = end, True
                live.put(TextFrame(live.rid, live.attempt, index, len(child.ids), b"", "", end))
        return changed

    # --- Output -----------------------------------------------------------------------------------------------------

    def text(self, detokeniser: str, message: Text, now: float) -> tuple[list[Live], list[Live]]:
        """Apply a detokeniser's frames.

        Returns:
            Requests whose clients have something to take, and requests to open again (a frame was missing), each in order.
        """
        touched: dict[bytes, Live] = {}
        again: dict[bytes, Live] = {}
        for frame in message.frames:
            live = self.live.get(frame.rid)
            reason = self._refusal(live, detokeniser, frame)
            if live is not None and reason == "":
                self._apply(live, frame, now)
                touched[live.rid] = live
            else:
                self.dropped[reason] = self.dropped.get(reason, 0) + 1
                if live is not None and reason == "gap" and self._lose(live):
                    again[live.rid] = live
        return list(touched.values()), list(again.values())

    def over_budget(self, live: Live) -> bool:
        """Whether its client has left too much unread."""
        return live.pending_bytes > self.byte_budget * len(live.children)

    def _refusal(self, live: Live | None, detokeniser: str, frame: TextFrame) -> str:
        """Why a frame can't be applied; "" if it can."""
        if live is None:
            return "unknown"
        if live.detokeniser != detokeniser or frame.attempt != live.attempt:
            return "stale"
        if not 0 <= frame.child < len(live.children) or len(frame.ids) % 4:
            return "malformed"
        child = live.children[frame.child]
        if child.end is not None:
            return "after_end"
        held, count = len(child.ids), len(frame.ids) // 4
        if frame.offset == held:
            return ""
        return "duplicate" if frame.offset + count <= held and frame.end is None else "gap"

    def _apply(self, live: Live, frame: TextFrame, now: float) -> None:
        child = live.children[frame.child]
        child.ids.extend(unpack_ids(frame.ids))
        child.end = frame.end
        live.cached_tokens = max(live.cached_tokens, frame.cached_tokens)
        if live.first_token is None:
            live.first_token = now
            live.ticket.started()
        live.put(frame)

    # --- Trouble: what to open again --------------------------------------------------------------------------------

    def lost(self, rids: Iterable[bytes], attempts: Iterable[int] = ()) -> list[Live]:
        """Requests that a scheduler or detokeniser gave up. Former ``attempts`` of them (if told) are no loss."""
        again = []
        for rid, attempt in zip_longest(rids, attempts):
            live = self.live.get(rid)
            if live is not None and attempt in (None, live.attempt) and self._lose(live):
                again.append(live)
        return again

    def detokeniser_gone(self, instance: str) -> list[Live]:
        """Requests whose text came from ``instance``."""
        return self._lose_where(lambda live: live.detokeniser == instance)

    def scheduler_gone(self, instance: str, incarnation: int) -> list[Live]:
        """Requests that this process of a scheduler drove."""
        return self._lose_where(lambda live: live.scheduler == (instance, incarnation))

    def leader_changed(self, instance: str, incarnation: int) -> list[Live]:
        """Requests that another scheduler than the new leader drove."""
        return self._lose_where(lambda live: live.scheduler not in (None, (instance, incarnation)))

    def _lose_where(self, condition: Callable[[Live], bool]) -> list[Live]:
        return [live for live in list(self.live.values()) if condition(live) and self._lose(live)]

    def _lose(self, live: Live) -> bool:
        """Void the current attempt. True if nobody is opening it already."""
        if live.ended:
            return False
        if live.opening:
            live.lost_again = True
            return False
        live.opening = True
        return True

    def begin_attempt(self, live: Live, detokeniser: str, scheduler: tuple[str, int]) -> int:
        """Count a new attempt, to be made at these two. Frames of earlier attempts are stale from here on."""
        live.attempt += 1
        live.detokeniser, live.scheduler = detokeniser, scheduler
        live.opening, live.lost_again, live.unknown = True, False, 0
        for child in live.children:
            child.behind = 0
        return live.attempt

    def opened(self, live: Live) -> bool:
        """The attempt was accepted. False if it was lost meanwhile: make another."""
        if live.lost_again:
            return False
        live.opening = False
        return True

    # --- Reconcile --------------------------------------------------------------------------------------------------

    def reconcile(self, number: int, per_message: int) -> Iterator[LiveMessage]:
        """What we hold, as messages for the scheduler. One empty one when that is nothing: it then cancels whatever it has of ours.

        Each is made when it is asked for and says what is true then. A list that takes a while may lack who came meanwhile; whoever reads
        it lets go of what two lists in a row lack.
        """
        return self._named(per_message, number, lambda live: live.attempt > 0 and not live.ended, Live.offsets)

    def held_at(self, detokeniser: str, per_message: int) -> Iterator[LiveMessage]:
        """What we hold whose text comes from ``detokeniser``, as messages for it; made as those of `reconcile` are."""
        return self._named(per_message, 0, lambda live: live.detokeniser == detokeniser and not live.settled)

    def _named(
        self,
        per_message: int,
        number: int,
        named: Callable[[Live], bool],
        offsets: Callable[[Live], tuple[int, ...]] = lambda live: (),
    ) -> Iterator[LiveMessage]:
        held = list(self.live.values())
        parts = max(1, -(-len(held) // per_message))
        for part in range(parts):
            some = held[part * per_message : (part + 1) * per_message]
            requests = tuple(
                LiveRequest(live.rid, live.attempt, offsets(live))
                for live in some
                if live.rid in self.live and named(live)
            )
            yield LiveMessage(requests, part, parts, number)

    def reconciled(
        self, asked: Iterable[LiveRequest], unknown: Iterable[bytes], ahead: Iterable[LiveRequest] = ()
    ) -> list[Live]:
        """The scheduler's answer to one part: see `LiveReply`. Returns requests to open again."""
        missing = dict.fromkeys(unknown)
        theirs = {request.rid: request for request in ahead}
        again = []
        for request in asked:
            live = self.live.get(request.rid)
            if live is None or live.opening or live.attempt != request.attempt:
                continue
            live.unknown = live.unknown + 1 if request.rid in missing else 0
            known = theirs.get(request.rid)
            behind = _compare(live, known.offsets if known is not None and known.attempt == live.attempt else ())
            if (live.unknown >= UNKNOWN_TWICE or behind >= BEHIND_OFTEN) and self._lose(live):
                again.append(live)
        return again


def _compare(live: Live, theirs: tuple[int, ...]) -> int:
    """Note what the scheduler has of each choice (an end counts as one; empty = nothing that we lack). Returns the largest count of
    reconciles in a row that found a choice behind and where it was."""
    for index, child in enumerate(live.children):
        has, held = theirs[index] if index < len(theirs) else 0, len(child.ids)
        if child.end is not None or has <= held:
            child.behind = 0
        elif child.behind and child.behind_at == held:
            child.behind += 1
        else:
            child.behind, child.behind_at = 1, held
    return max(child.behind for child in live.children)
