"""uvicorn, embedded: our socket, our signals, our protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import anyio
import uvicorn
from starlette.types import ASGIApp

from .http_protocol import Protocol
from .listening import bind

BACKLOG = 2048
"""Connections that wait to be accepted: bursts of benchmark clients."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves ``app`` until `stop`. asyncio only (uvicorn is).

    Args:
        head_timeout_s, refused: see `Protocol`.
        drain_s: how long open connections may take to finish after `stop`.

    Raises:
        ConfigError: the address can't be used.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, head_timeout_s: float, refused: Callable[[int], None], drain_s: float
    ) -> None:
        self._socket = bind(host, port, "--http-port")
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=cast(Any, partial(Protocol, head_timeout_s=head_timeout_s, refused=refused)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve; returns after `stop` once connections are closed. Cancelling it closes everything at once."""
        try:
            await self._server.serve(sockets=[self._socket])
        except anyio.get_cancelled_exc_class():
            self._server.force_exit = True
            for listener in getattr(self._server, "servers", []):
                listener.close()  # uvloop waits for ever at its end for one whose socket was closed beneath it
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            raise
        finally:
            self._socket.close()

    def close(self) -> None:
        """Give the port up without having served."""
        self._socket.close()

    def stop(self) -> None:
        """Take no more connections and let `run` return."""
        self._server.should_exit = True
