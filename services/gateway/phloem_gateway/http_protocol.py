"""HTTP/1.1 connections: uvicorn's protocol with bounds on what a client may send before its request is whole, and clean ends."""

from __future__ import annotations

import asyncio
import logging
from asyncio.events import TimerHandle
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .decode import to_json
from .errors import ApiError
from .exchange import ABORT
from .limits import MAX_HEAD_BYTES, MAX_PIPELINED

PIECE = 16 * 1024
"""Bytes parsed at once. What begins inside a piece isn't counted in it, so the bounds are exact up to this."""
LINGER_S = 2.0
"""How long a refused client may go on sending until it has read why: closing at once would reset the answer away."""
_log = logging.getLogger("phloem.gateway.http")


class Protocol(HttpToolsProtocol):
    """One connection.

    A client is refused, in order after the answers it is still owed, when it sends what is not HTTP, more than `MAX_HEAD_BYTES` without
    completing its headers (or, in chunked bodies, trailers) or more than `MAX_PIPELINED` requests ahead; and when no request of it is being
    served and it takes longer than ``head_timeout_s`` for the next one's headers.

    Args:
        head_timeout_s: seconds from the connection, or from a message's first byte, until its headers must be complete.
        refused: told the status of each refusal.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        head_timeout_s: float,
        refused: Callable[[int], None],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_timeout_s = head_timeout_s
        self._tell_refused = refused
        self._timer: TimerHandle | None = None
        self._unproductive = 0
        """Bytes since the last that completed headers or were part of a body."""
        self._productive = False
        self._in_head = False
        """Something of a message's head has come, but not all."""
        self._running: RequestResponseCycle | None = None
        """The request being served; uvicorn's ``cycle`` is the newest that was read."""
        self._refusal: ApiError | None = None
        """Set once nothing more is read."""

    # --- Connection -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._disconnect(self._running)
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._read(data[start : start + PIECE])
        if self._timer is None and self._refusal is None and not self._owes_answers():
            self._start_timer()

    def _read(self, piece: bytes) -> None:
        while piece and self._refusal is None and not self.transport.is_closing():
            room = MAX_HEAD_BYTES - self._unproductive
            self._productive = False
            super().data_received(piece[:room])
            self._unproductive = 0 if self._productive else self._unproductive + len(piece[:room])
            if self._refusal is None and self._unproductive >= MAX_HEAD_BYTES:
                self._refuse(ApiError("headers_too_large", f"The headers have more than {MAX_HEAD_BYTES} bytes."))
            elif self._refusal is None and len(self.pipeline) > MAX_PIPELINED:
                self._refuse(
                    ApiError("rate_limit_exceeded", f"More than {MAX_PIPELINED} requests wait on one connection.")
                )
            piece = piece[room:]

    # --- Parser -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}

    def on_headers_complete(self) -> None:
        self._productive, self._in_head = True, False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._productive = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._productive = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What was read is not HTTP."""
        self._refuse(ApiError("invalid_request", msg))

    # --- Answers ----------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._stop_timer()
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._owes_answers() or self.transport.is_closing():
            return
        if self._refusal is not None:
            self._say_refusal(self._refusal)
        elif self._in_head:
            self._unset_keepalive_if_required()
            self._start_timer()

    def _owes_answers(self) -> bool:
        return bool(self.pipeline) or (self._running is not None and not self._running.response_complete)

    # --- Refusals ---------------------------------------------------------------------------------------------------

    def _refuse(self, error: ApiError) -> None:
        """Read no more; answer what was whole, then tell ``error`` and close."""
        self._refusal = error
        self._stop_timer()
        broken = self.cycle
        if broken is not None and broken.more_body and not broken.response_complete:
            if self.pipeline and self.pipeline[0][0] is broken:
                self.pipeline.popleft()
            else:
                self._disconnect(broken)
                self._say_refusal(None if broken.response_started else error)
                return
        if not self._owes_answers():
            self._say_refusal(error)

    def _say_refusal(self, error: ApiError | None) -> None:
        """The connection's last words (None: an answer has begun already), and its end once the client has had time to read them."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if error is not None:
            self._tell_refused(error.status)
            _log.info("connection of %s refused: %s", self.client[0] if self.client else "a client", error.code)
            self.transport.write(_reply(error))
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle | None) -> None:
        """Let whoever serves ``cycle`` see a client that is gone; what it still writes goes nowhere."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # --- Time -------------------------------------------------------------------------------------------------------

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._head_timeout_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head or self._unproductive:
            self._refuse(ApiError("request_timeout", "The request's headers did not arrive in time."))
        else:
            self.transport.close()


def _reply(error: ApiError) -> bytes:
    body = to_json(error.body())
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[error.status] + head + body
