"""Which requests there are, whose they are, and which are over: by rid, by gateway, and as tombstones."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from phloem_proto.messages import Live, LiveReply, LiveRequest

from .requests import Request

TOMBSTONE_S = 60.0
# A late open comes within seconds; 65,536 tombstones last a minute at 1,000 requests a second and are 10 MB.
MOST_TOMBSTONES = 65_536
# A gateway cancels what it has finished with at once; this is for one that lost that message and goes on saying the request lives.
KEEP_DONE_S = 60.0
# Lists of live requests that may lack a request before it counts as given up: the first may have been on its way when it was opened.
MOST_MISSES = 2


@dataclass(slots=True)
class GatewayView:
    """The requests of one gateway."""

    requests: dict[bytes, Request] = field(default_factory=dict)
    mentioned: dict[bytes, None] = field(default_factory=dict)  # in the parts of the list under way
    parts: int = 0  # received of the list under way
    incarnation: int = 0  # of the process whose lists these are
    listed: int = 0  # number of its last complete list


class Ledger:
    """Requests from open to cancel."""

    def __init__(self) -> None:
        self.requests: dict[bytes, Request] = {}
        self.gateways: dict[str, GatewayView] = {}
        self._tombstones: OrderedDict[bytes, tuple[int, float]] = (
            OrderedDict()
        )  # rid -> (attempt, until), in order of until
        self._deadlines: list[tuple[float, int, bytes]] = []
        self._done: deque[tuple[float, bytes]] = deque()

    def add(self, request: Request) -> None:
        """A new request."""
        self.requests[request.rid] = request
        self.gateways.setdefault(request.gateway, GatewayView()).requests[request.rid] = request
        self.note_deadline(request)

    def note_deadline(self, request: Request) -> None:
        """request.deadline was set."""
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.number, request.rid))

    def remove(self, request: Request) -> None:
        """Forget request."""
        self.requests.pop(request.rid, None)
        self.leave_gateway(request)

    def leave_gateway(self, request: Request) -> None:
        """request is not its gateway's any more."""
        view = self.gateways.get(request.gateway)
        if view is not None:
            view.requests.pop(request.rid, None)
            view.mentioned.pop(request.rid, None)
            if not view.requests:
                del self.gateways[request.gateway]

    def bury(self, rid: bytes, attempt: int, now: float) -> None:
        """From now on opens of this and lower attempts are stale."""
        former = self._tombstones.pop(rid, (0, 0.0))[0]
        self._tombstones[rid] = (max(attempt, former), now + TOMBSTONE_S)
        while len(self._tombstones) > MOST_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def buried(self, rid: bytes, attempt: int) -> bool:
        """Whether this attempt was cancelled already."""
        return attempt <= self._tombstones.get(rid, (0, 0.0))[0]

    def done(self, request: Request, now: float) -> None:
        """Every choice of request has ended; it is kept for a while in case that must be said again."""
        request.done_at = now
        self._done.append((now, request.rid))

    def expire(self, now: float, most: int) -> tuple[list[Request], list[Request]]:
        """Drop old tombstones; return requests past their deadline, and done ones that nobody cancelled for long.

        Looks at `most` of each; the others are `overdue`.
        """
        late: list[Request] = []
        old: list[Request] = []
        for _ in range(most):
            if not self.overdue(now):
                break
            if self._tombstone_overdue(now):
                self._tombstones.popitem(last=False)
            if self._deadline_overdue(now):
                request = self.requests.get(heapq.heappop(self._deadlines)[2])
                if (
                    request is not None
                    and request.deadline is not None
                    and request.deadline <= now
                    and not request.done
                ):
                    late.append(request)
            if self._done_overdue(now):
                request = self.requests.get(self._done.popleft()[1])
                if request is not None and request.done_at is not None and request.done_at <= now - KEEP_DONE_S:
                    old.append(request)
        return late, old

    def overdue(self, now: float) -> bool:
        """Whether `expire` has something to do."""
        return self._tombstone_overdue(now) or self._deadline_overdue(now) or self._done_overdue(now)

    def _tombstone_overdue(self, now: float) -> bool:
        return bool(self._tombstones) and self._tombstones[next(iter(self._tombstones))][1] <= now

    def _deadline_overdue(self, now: float) -> bool:
        return bool(self._deadlines) and self._deadlines[0][0] <= now

    def _done_overdue(self, now: float) -> bool:
        return bool(self._done) and self._done[0][0] <= now - KEEP_DONE_S

    def reconcile(self, gateway: str, live: Live, incarnation: int = 0) -> tuple[LiveReply, list[Request]]:
        """Compare with what a gateway says it holds: the reply, and those it has given up (missing twice).

        A list that was told before, or that a later one has replaced, says nothing.
        """
        view = self.gateways.get(gateway) or GatewayView()
        if view.incarnation != incarnation:
            view.incarnation, view.listed = incarnation, 0
        if 0 < live.number <= view.listed:
            return LiveReply(part=live.part), []
        if live.part == 0:
            view.mentioned, view.parts = {}, 0
        unknown: list[bytes] = []
        ahead: list[LiveRequest] = []
        for entry in live.requests:
            request = view.requests.get(entry.rid)
            if request is None or request.attempt < entry.attempt:
                unknown.append(entry.rid)
                continue
            view.mentioned[entry.rid] = None
            request.missed = 0
            for choice, offset in zip(request.choices, entry.offsets, strict=False):
                covered = min(offset, len(choice.output)) - choice.logprob_base
                if covered > 0 and choice.logprobs:
                    del choice.logprobs[:covered]
                    choice.logprob_base += covered
            told = tuple(len(choice.output) + (choice.end is not None) for choice in request.choices)
            if request.attempt == entry.attempt and any(
                mine > theirs for mine, theirs in zip(told, entry.offsets, strict=False)
            ):
                ahead.append(LiveRequest(entry.rid, entry.attempt, told))
        view.parts += 1
        gone: list[Request] = []
        if live.part == live.parts - 1 and view.parts == live.parts:
            view.listed = live.number
            gone = self._missing(view)
        return LiveReply(tuple(unknown), live.part, tuple(ahead)), gone

    def _missing(self, view: GatewayView) -> list[Request]:
        gone = []
        for rid, request in view.requests.items():
            if rid not in view.mentioned:
                request.missed += 1
                if request.missed >= MOST_MISSES:
                    gone.append(request)
        return gone
