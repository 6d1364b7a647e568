"""What one request yielded: times, counts, and how it failed if it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Failure(StrEnum):
    """Kinds of failed requests, as reports count them; HTTP errors are counted as ``http_<status>``."""

    CONNECT = "connect"
    """No connection to the server."""
    DISCONNECTED = "disconnected"
    """The server closed the connection before its reply was complete."""
    TIMEOUT = "timeout"
    BAD_REPLY = "bad_reply"
    """The reply is not what the API promises."""
    STREAM_ERROR = "stream_error"
    """The server sent an error, or a finish reason that is one, instead of the rest of the stream."""
    EMPTY = "empty"
    """A complete reply without any output token."""
    TRUNCATED = "truncated"
    """The answer was cut at max_tokens before its JSON was complete."""
    INVALID_JSON = "invalid_json"
    """The answer does not follow its schema."""


@dataclass(slots=True)
class Record:
    """One request. Times are seconds on the run's clock (0 = start of the run)."""

    index: int
    planned_s: float | None = None
    """When it should have been sent; None in a closed loop."""
    start_s: float = 0.0
    first_s: float | None = None
    """Arrival of the first output; None when not streamed or none came."""
    last_s: float | None = None
    """Arrival of the last output."""
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Time between successive pieces of output."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    """Token counts are the server's own; otherwise output_tokens is the number of streamed pieces."""
    finish_reason: str = ""
    failure: str = ""
    """"" = went well, else a `Failure` or ``http_<status>``."""
    detail: str = ""
    """The failure in words, at most 200 characters."""
    text: str = ""
    """The answer, kept only for those that are to be validated."""

    @property
    def ok(self) -> bool:
        return not self.failure

    def fail(self, kind: str, detail: str = "") -> None:
        """Note the first failure; later ones are consequences."""
        if not self.failure:
            self.failure, self.detail = str(kind), detail[:200]
