"""Local ports: containers may all listen on the same one, processes of one machine may not."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .errors import PortInUse, UpError

LOOPBACK = "127.0.0.1"
TRIES_MOST = 200  # ports looked at above the wanted one: more instances than anybody runs on one machine


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are only closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class Claims:
    """Ports that this process means to use, so that another `phloem up` of the same user leaves them alone before anybody listens on them.

    A claim is a lock on a file; it ends with the ``with`` block, or with the process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"phloem-ports-{os.getuid()}"
        self._held: list[IO[str]] = []

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._held:
            file.close()

    def take(self, port: int) -> bool:
        """Whether ``port`` is ours now; True as well where no file can be written, for then there are no claims."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = (self._folder / str(port)).open("w")
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._held.append(file)
        return True


class Ports:
    """Gives each listener its own port, the wanted one if it can be had. ``free`` asks the machine, ``claim`` other processes of ours."""

    def __init__(self, free: Callable[[int], bool] = is_free, claim: Callable[[int], bool] = lambda _: True) -> None:
        self._free = free
        self._claim = claim
        self._given: set[int] = set()

    def published(self, setting: str, port: int) -> int:
        """``port`` and no other, for users know it. Raises PortInUse."""
        if port in self._given or not self._free(port):
            raise PortInUse(setting, port)
        self._given.add(port)
        return port

    def near(self, wanted: int) -> int:
        """``wanted`` or the next one above it that is free. Raises UpError if there is none."""
        for port in range(wanted, min(wanted + TRIES_MOST, 65536)):
            if port not in self._given and self._free(port) and self._claim(port):
                self._given.add(port)
                return port
        raise UpError(f"no free port from {wanted} to {wanted + TRIES_MOST - 1}")
