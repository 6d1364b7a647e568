"""One child process: started in a group of its own, its output as lines, ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import anyio
from anyio.abc import Process

from . import launcher
from .plan import Instance

LINE_BYTES_MOST = 16_384  # a longer line is cut in pieces, so that one service can't fill our memory


class Child:
    """A running instance."""

    def __init__(self, instance: Instance, process: Process) -> None:
        self.instance = instance
        self._process = process
        self.ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, instance: Instance, output: IO[bytes] | None = None) -> Child:
        """Start it. What it says comes from `lines`, or goes to the file ``output``. Raises OSError if not even the launcher can be executed."""
        argv = [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(os.getpid()), str(instance.nice)]
        process = await anyio.open_process(
            [*argv, *instance.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.STDOUT,
            env=instance.environment,
            # A terminal's Ctrl-C reaches us alone; we pass it on in order. The group is also what `kill` ends.
            start_new_session=True,
        )
        return cls(instance, process)

    async def lines(self) -> AsyncIterator[str]:
        """What it says, line by line, until it and its children have closed their output."""
        assert self._process.stdout is not None
        pending = b""
        async for chunk in self._process.stdout:
            *complete, pending = (pending + chunk).split(b"\n")
            if len(pending) > LINE_BYTES_MOST:
                complete, pending = [*complete, pending], b""
            for line in complete:
                yield _text(line)
        if pending:
            yield _text(pending)

    async def wait(self) -> int:
        """Its exit code once it ended; negative: the signal that ended it. What it left running is killed."""
        code = await self._process.wait()
        self.ended = True
        self.kill()
        return code

    def terminate(self) -> None:
        """Ask it to drain. Only the process itself: it knows best how its children should end."""
        try:
            os.kill(self.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it was faster

    def kill(self) -> None:
        """End it and everything in its group now."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")
