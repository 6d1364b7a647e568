"""What a process around services needs: signals, threads, the ready file, the port for Prometheus."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry, start_http_server

from .errors import ConfigError

T = TypeVar("T")

_log = logging.getLogger("phloem.run")

TOUCH_S = 1.0
FRESH_S = 5.0
"""A ready file older than this is that of a process which is dead or whose loop stalls."""
HARD_EXIT_S = 3.0
"""After a second signal: how long cancelled work may take to go away."""


class Threads:
    """An `Offload` on worker threads.

    Args:
        limit: most pieces of work at once; further ones wait. Default: one per core, at least two.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limiter = anyio.CapacityLimiter(limit or max(2, os.cpu_count() or 1))

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run ``work`` in a thread. A cancelled caller still waits for it: what it uses may not be taken away under it."""
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


class Signals:
    """SIGTERM and SIGINT: the first sets ``drain``, the second means that everything is to be cancelled.

    Args:
        drain: set at the first signal.
    """

    def __init__(self, drain: anyio.Event) -> None:
        self._drain = drain

    async def watch(self) -> None:
        """Handle signals; returns at the second one. Then the process ends within ``HARD_EXIT_S``, even if a thread hangs."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async for number in received:
                if self._drain.is_set():
                    _log.warning("%s: stopping at once", number.name)
                    break
                _log.info("%s: draining; once more to stop at once", number.name)
                self._drain.set()
        killer = threading.Timer(HARD_EXIT_S, os._exit, (130,))
        killer.daemon = True
        killer.start()


class ReadyFile:
    """A file that is there, freshly touched, while the process is ready.

    Args:
        path: where; None = nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._ready = False

    def set(self, ready: bool) -> None:
        """Readiness changed."""
        self._ready = ready
        self._write()

    async def keep(self) -> None:
        """Touch it until cancelled, then remove it."""
        try:
            while True:
                self._write()
                await anyio.sleep(TOUCH_S)
        finally:
            self.set(False)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            if self._ready:
                self._path.write_text(f"{os.getpid()}\n", encoding="ascii")
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the ready file can't be written: %s", error)


def probe(ready_file: Path | None) -> int:
    """Exit code of a health check: 0 when ``ready_file`` was touched within ``FRESH_S`` seconds, else 1."""
    try:
        age = time.time() - ready_file.stat().st_mtime if ready_file is not None else float("inf")
    except OSError:
        return 1
    return 0 if age <= FRESH_S else 1


@contextmanager
def metrics_server(port: int, registry: CollectorRegistry, host: str) -> Iterator[None]:
    """Serve ``registry`` to Prometheus on ``port`` of ``host`` (0 = not at all) while the context lasts.

    Raises:
        ConfigError: the port or the address can't be used.
    """
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("--metrics-host", f"not an address of this machine: {host!r}") from error
        why = "is in use" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror}"
        raise ConfigError("--metrics-port", f"port {port} {why}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
