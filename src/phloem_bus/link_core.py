"""One end of a link without I/O: numbering, acknowledgement, resending, windows.

A frame is numbered from 1. The receiver applies frames in order and acknowledges cumulatively what it has *applied*; the sender keeps
a frame until then. Acknowledgements ride on frames of the other direction, or go alone a little later. Two clocks are passed in: ``now``
drives resending, ``patience`` (see `Patience`) decides that a peer is gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

WINDOW_FRAMES = 1024
"""Frames under way: a second of traffic at a thousand messages a second."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Bytes under way: two messages of the largest size."""
BACKLOG_FRAMES = 16384
"""Frames waiting for the window; a peer that is alive drains them in well under 3 s, so more means that it is not."""
BACKLOG_BYTES = 128 * 1024 * 1024
"""Bytes waiting for the window: some hundred prompts of the largest size."""
RESEND_S = 0.05
RESEND_MAX_S = 1.0
RESEND_FRAMES = 64
"""Frames resent at once: a stalled peer isn't buried under copies; an acknowledgement releases the next at once."""
RESEND_BYTES = 1024 * 1024
ACK_S = 0.02
"""How long an acknowledgement may wait for a frame to ride on: well below ``RESEND_S``."""
ACK_FRAMES = 64
"""Applied frames after which it doesn't wait: a fraction of the window."""
ACK_BYTES = 1024 * 1024
KEEPALIVE_S = 0.1
"""Between frames while something is unacknowledged."""
IDLE_KEEPALIVE_S = 1.0
"""Between frames otherwise, so that a peer which has forgotten the link says so."""
STUCK_WINDOW_S = 3.0
STUCK_S = 10.0
"""Without progress while the window isn't full: the peer beats and yet never applies what it got."""


class Outgoing(NamedTuple):
    """A frame to be sent now. ``seq`` 0: no body."""

    seq: int
    ack: int
    last: int
    body: bytes


@dataclass(slots=True)
class _Unacked:
    seq: int
    body: bytes
    sent_at: float


class LinkCore:
    """Sans-I/O state of one end.

    Call `push` to send; `receive`, then `take` and `applied` until `take` gives None, for what arrives; `next_frame` until it gives None
    whenever `due` says so, and `gone` now and then.

    Args:
        now, patience: the two clocks at the start.
    """

    def __init__(self, now: float, patience: float) -> None:
        self._last_sent = 0
        self._unacked: deque[_Unacked] = deque()
        self._unacked_bytes = 0
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._overflown = False
        self._resend_s = RESEND_S
        self._round: deque[_Unacked] = deque()
        self._round_end = 0
        self._heard_at = float("-inf")
        self._spoke_at = now
        self._progress_at = patience
        self._applied = 0
        self._told = 0
        self._ack_since: float | None = None
        self._ack_frames = 0
        self._ack_bytes = 0
        self._early: dict[int, bytes] = {}
        self._early_bytes = 0
        self.resent = 0
        self.duplicates = 0

    @property
    def unacknowledged(self) -> int:
        """Frames pushed and not yet applied by the peer."""
        return len(self._unacked) + len(self._backlog)

    @property
    def window_full(self) -> bool:
        return len(self._unacked) >= WINDOW_FRAMES or self._unacked_bytes >= WINDOW_BYTES

    def push(self, body: bytes, patience: float) -> bool:
        """Queue a frame. False: too much is waiting already, and the peer counts as gone."""
        if len(self._backlog) >= BACKLOG_FRAMES or self._backlog_bytes + len(body) > BACKLOG_BYTES:
            self._overflown = True
            return False
        if not self.unacknowledged:
            self._progress_at = patience
        self._backlog.append(body)
        self._backlog_bytes += len(body)
        return True

    def next_frame(self, now: float) -> Outgoing | None:
        """The next frame to send at ``now``: something to be resent, something new, or a bare acknowledgement."""
        frame = self._resend(now) or self._new(now)
        if frame is None and now >= self._speak_at():
            frame = self._frame(0, b"")
        if frame is not None:
            self._spoke_at = now
            self._told = self._applied
            self._ack_since = None
            self._ack_frames = self._ack_bytes = 0
        return frame

    def due(self) -> float:
        """When `next_frame` is to be called at the latest, if nothing else happens."""
        if self._round or (self._backlog and not self.window_full):
            return self._spoke_at
        due = self._speak_at()
        return min(due, self._resend_at())

    def gone(self, patience: float) -> str | None:
        """Why the peer counts as gone, if it does."""
        if self._overflown:
            return "took too little of what it was sent"
        stuck = patience - self._progress_at
        if self.window_full and stuck >= STUCK_WINDOW_S:
            return f"left the window full for {STUCK_WINDOW_S:g} s"
        if self._unacked and stuck >= STUCK_S:
            return f"applied nothing for {STUCK_S:g} s"
        return None

    def reconnected(self) -> None:
        """The bus is back: what was under way is lost, don't wait for a long timer."""
        self._resend_s = RESEND_S
        self._heard_at = float("-inf")

    def receive(self, seq: int, ack: int, body: bytes, now: float, patience: float) -> str:
        """Take in a frame.

        Returns:
            Why nothing of it was taken, or "": ``numbers`` for one that nobody who keeps to the protocol sends (it acknowledges what was never
            sent, or comes from beyond the window), ``duplicate`` for a body that is here already.
        """
        if ack > self._last_sent or seq > self._applied + WINDOW_FRAMES:
            return "numbers"
        self._acknowledged(ack, now, patience)
        if seq == 0:
            return ""
        if seq <= self._applied or seq in self._early:
            self.duplicates += 1
            if seq <= self._applied:
                self._owe_ack(now)  # the peer may have missed the last one
            return "duplicate"
        if self._has_room(seq, body):
            self._early[seq] = body
            self._early_bytes += len(body)
        return ""

    def take(self) -> bytes | None:
        """The next body in order, or None. Call `applied` when it is."""
        body = self._early.pop(self._applied + 1, None)
        if body is not None:
            self._early_bytes -= len(body)
            self._ack_bytes += len(body)
        return body

    def applied(self, now: float) -> None:
        """The frame that `take` gave has been applied."""
        self._applied += 1
        self._ack_frames += 1
        self._owe_ack(now)

    def _has_room(self, seq: int, body: bytes) -> bool:
        """What comes in order always fits; what is early fits if a sender that keeps to the window may have sent it."""
        return seq == self._applied + 1 or self._early_bytes + len(body) <= 2 * WINDOW_BYTES

    def _owe_ack(self, now: float) -> None:
        if self._ack_since is None:
            self._ack_since = now

    def _speak_at(self) -> float:
        at = self._spoke_at + (KEEPALIVE_S if self._unacked else IDLE_KEEPALIVE_S)
        if self._ack_since is not None:
            at_once = self._ack_frames >= ACK_FRAMES or self._ack_bytes >= ACK_BYTES
            at = min(at, self._ack_since if at_once else self._ack_since + ACK_S)
        return at

    def _frame(self, seq: int, body: bytes) -> Outgoing:
        return Outgoing(seq, self._applied, self._last_sent, body)

    def _new(self, now: float) -> Outgoing | None:
        if not self._backlog or self.window_full:
            return None
        body = self._backlog.popleft()
        self._backlog_bytes -= len(body)
        self._last_sent += 1
        self._unacked.append(_Unacked(self._last_sent, body, now))
        self._unacked_bytes += len(body)
        return self._frame(self._last_sent, body)

    def _resend_at(self) -> float:
        return max(self._unacked[0].sent_at, self._heard_at) + self._resend_s if self._unacked else float("inf")

    def _resend(self, now: float) -> Outgoing | None:
        """The next frame of a round of resending; a round starts when the oldest frame has waited long enough."""
        if not self._round and now >= self._resend_at():
            self._start_round(now)
        while self._round:
            entry = self._round.popleft()
            if self._unacked and entry.seq >= self._unacked[0].seq:
                entry.sent_at = now
                self.resent += 1
                return self._frame(entry.seq, entry.body)
        return None

    def _start_round(self, now: float) -> None:
        size = 0
        for entry in self._unacked:
            size += len(entry.body)
            if self._round and (
                len(self._round) >= RESEND_FRAMES or size > RESEND_BYTES or entry.sent_at > now - RESEND_S
            ):
                break
            self._round.append(entry)
        self._round_end = self._round[-1].seq
        self._resend_s = min(2 * self._resend_s, RESEND_MAX_S)

    def _acknowledged(self, ack: int, now: float, patience: float) -> None:
        if not self._unacked or ack < self._unacked[0].seq:
            return
        while self._unacked and self._unacked[0].seq <= ack:
            self._unacked_bytes -= len(self._unacked.popleft().body)
        self._progress_at = patience
        self._resend_s = RESEND_S
        # Exactly what was resent has arrived, so what came after it was lost too and can follow at once. Otherwise the peer is getting on
        # with what it has, and the timer starts again.
        self._heard_at = float("-inf") if ack == self._round_end else now
