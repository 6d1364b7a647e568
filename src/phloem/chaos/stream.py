"""One streamed request as its client sees it: when tokens came, whether any came twice, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from phloem.bench.http1 import BadResponse, Client, ConnectFailed, Disconnected, Response
from phloem.bench.sse import EventTooLong, SseDecoder

from .requests import Request

REFUSED = (429, 503)
"""Statuses that say: come back later. Nothing was accepted, so nothing is lost."""
DONE = b"[DONE]"
SHOWN_BYTES = 500
"""Of an error's body."""


class _Meta(msgspec.Struct):
    finish_reason: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    text: str = ""
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class Stream:
    """What came. All times are on the loop's clock, in seconds."""

    request: Request
    sent_at: float = 0.0
    answered_at: float = 0.0
    """When the reply's head was here; 0 = never."""
    over_at: float = 0.0
    """When its end was here, or it broke; 0 = not yet."""
    status: int = 0
    arrivals: list[float] = field(default_factory=list)
    """When more tokens were here."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    """``stop`` or ``length``; "" = no proper end."""
    trouble: str = ""
    repeated: int = 0
    """Events that took something back or said it twice."""

    @property
    def ended(self) -> bool:
        """It came to its proper end."""
        return self.finish in ("stop", "length") and not self.trouble

    @property
    def refused(self) -> bool:
        """It was told to come back later, before anything else."""
        return self.status in REFUSED

    @property
    def failed(self) -> bool:
        """It was accepted and did not come to its proper end, or got an answer that it should not get."""
        return bool(self.over_at) and not self.ended and not self.refused

    def take(self, payload: bytes, now: float) -> None:
        """One event, which holds everything so far (as ``/generate`` sends it)."""
        if payload == DONE:
            return
        try:
            event = msgspec.json.decode(payload, type=_Event)
        except msgspec.DecodeError as error:
            self.trouble = f"an event that can't be read: {error}"
            return
        if event.error is not None:
            self.trouble = str(event.error.get("message", event.error))
            return
        held = len(self.ids)
        if self.finish or event.output_ids[:held] != self.ids or not event.text.startswith(self.text):
            self.repeated += 1
        if len(event.output_ids) > held:
            self.arrivals.append(now)
        self.ids, self.text = event.output_ids, event.text
        reason = None if event.meta_info is None else event.meta_info.finish_reason
        if reason is not None:
            self.finish = str(reason.get("type", ""))
            self.over_at = now


async def follow(client: Client, stream: Stream) -> None:
    """Send its request, and take what comes until the connection has no more. Never raises for what the server does."""
    clock = anyio.current_time
    stream.sent_at = clock()
    try:
        async with client.request("POST", "/generate", stream.request.body) as response:
            stream.answered_at, stream.status = clock(), response.status
            if response.status != 200:
                stream.trouble = (await response.read())[:SHOWN_BYTES].decode("utf-8", "replace")
            elif stream.request.streamed:
                await _events(response, stream)
            else:
                stream.take(await response.read(), clock())
    except (ConnectFailed, Disconnected, BadResponse, EventTooLong) as error:
        if not stream.finish:
            stream.trouble = stream.trouble or str(error)
    stream.over_at = stream.over_at or clock()


async def _events(response: Response, stream: Stream) -> None:
    decoder = SseDecoder()
    while data := await response.receive():
        now = anyio.current_time()
        for payload in decoder.feed(data):
            stream.take(payload, now)
    if not stream.finish and not stream.trouble:
        stream.trouble = "the stream stopped without an end"
