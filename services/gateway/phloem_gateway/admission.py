"""Who may come in: the scheduler's credits and our own bound, decided before any work."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_proto.messages import Load

from .errors import ApiError


@dataclass(slots=True)
class Ticket:
    """One admitted request's share: `started` when its first token is here, `finished` at its end, `release` when its client is gone."""

    admission: Admission
    bytes: int
    ended: bool = False
    released: bool = False

    def resize(self, size: int) -> None:
        """The exact number of prompt bytes, once it is known."""
        if not self.ended and self.bytes:
            self.admission.waiting_bytes += size - self.bytes
            self.bytes = size

    def started(self) -> None:
        """The prompt is not waiting any more."""
        self.admission.waiting_bytes -= self.bytes
        self.bytes = 0

    def finished(self) -> None:
        """The scheduler is done with it: its credit is free, even if the client still reads. Calling it again changes nothing."""
        if not self.ended:
            self.ended = True
            self.started()
            self.admission.requests -= 1

    def release(self) -> None:
        """The client has everything, or is gone. Calling it again changes nothing."""
        self.finished()
        if not self.released:
            self.released = True
            self.admission.held -= 1


class Admission:
    """Counts what is live here against what the scheduler grants each gateway.

    Args:
        max_live: most requests whose clients are still here, whatever the scheduler grants (each has buffers and a task).
    """

    def __init__(self, max_live: int) -> None:
        self.max_live = max_live
        self.held = 0
        """Requests whose clients are still here."""
        self.requests = 0
        """Those of them that have not ended."""
        self.waiting_bytes = 0

    def take(self, sizes: list[int], load: Load) -> list[Ticket]:
        """Tickets for several requests at once, all or none.

        Args:
            sizes: bytes of prompt ids per request (known or estimated).
            load: the scheduler's latest.

        Raises:
            ApiError: ``rate_limit_exceeded`` with the time after which to come back.
        """
        count, size = len(sizes), sum(sizes)
        self._require(count, size, load)
        self.held += count
        self.requests += count
        self.waiting_bytes += size
        return [Ticket(self, size) for size in sizes]

    def check_room(self, load: Load) -> None:
        """Whether even the smallest request could get in: told before a body is parsed, for that is where a flood's time would go.

        Raises:
            ApiError: as `take`.
        """
        self._require(1, 1, load)

    def _require(self, count: int, size: int, load: Load) -> None:
        retry = (load.retry_after_ms or 1000) / 1000.0
        if self.held + count > self.max_live or self.requests + count > load.credit_requests:
            raise ApiError(
                "rate_limit_exceeded", "Too many requests are being served. Try again later.", retry_after_s=retry
            )
        # A prompt larger than the whole grant still gets in when nothing else waits: otherwise it never would.
        if self.waiting_bytes and self.waiting_bytes + size > load.credit_bytes:
            raise ApiError(
                "rate_limit_exceeded", "Too much prompt text is waiting. Try again later.", retry_after_s=retry
            )
