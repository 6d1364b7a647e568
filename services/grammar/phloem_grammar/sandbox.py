"""The service's side of a fork server: starts it, keeps it alive, and awaits jobs without blocking the event loop."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import count

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import Process, TaskStatus

from .engine import Lost, Outcome, Task
from .sandbox_wire import Done, Frames, Job, Setup, pack, to_client

log = logging.getLogger(__name__)

START_S = 120.0
"""Loading an engine takes 0.5 s (llguidance) or 3 s (xgrammar) on a quiet machine."""
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0
EXIT_S = 2.0
"""How long a fork server may take to leave after its stdin was closed."""


class SandboxError(Exception):
    """Raised when a fork server does not come up; the message says what its engine raised."""


class ForkServer:
    """One fork server process and the jobs given to it. `run` must be running for `submit` to work."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._ids = count(1)
        self._pending: dict[int, _Pending] = {}
        self._process: Process | None = None
        self._up = anyio.Event()
        self._send_lock = anyio.Lock()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep a server up until cancelled; started once the first one has loaded its engine.

        Raises:
            SandboxError: the first one does not come up. (A later one is tried again, with back-off.)
        """
        backoff = BACKOFF_MIN_S
        first = True
        while True:
            try:
                await self._one_life(task_status if first else TASK_STATUS_IGNORED)
                backoff = BACKOFF_MIN_S
                log.warning("the grammar sandbox went away; starting it again")
            except SandboxError as error:
                if first:
                    raise
                log.error("the grammar sandbox does not start: %s", error)
            first = False
            await anyio.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_MAX_S)
            self.restarts += 1

    async def submit(self, task: Task) -> Outcome:
        """Run ``task`` in a child. `Lost` when the server goes away meanwhile. Cancelling only stops waiting."""
        await self._up.wait()
        job = next(self._ids)
        pending = self._pending[job] = _Pending()
        try:
            await self._send(pack(Job(job, task)))
            await pending.done.wait()
            return pending.outcome
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return Lost("the sandbox is gone")
        finally:
            self._pending.pop(job, None)

    async def _one_life(self, task_status: TaskStatus[None]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "phloem_grammar.sandbox_server"]
        process = await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, env=environment
        )
        self._process = process
        try:
            await self._talk(process, task_status)
        finally:
            self._process = None
            self._up = anyio.Event()
            for pending in self._pending.values():
                pending.done.set()
            await _end(process)

    async def _talk(self, process: Process, task_status: TaskStatus[None]) -> None:
        assert process.stdout is not None
        frames = Frames()
        with anyio.move_on_after(START_S) as starting:
            try:
                await self._send(pack(self._setup))
            except (anyio.BrokenResourceError, OSError):
                pass  # it ended at once; the loop below sees that
            up = False
            async for data in process.stdout:
                for body in frames.feed(data):
                    message = to_client.decode(body)
                    if isinstance(message, Done):
                        self._settle(message)
                        continue
                    if message.error:
                        raise SandboxError(message.error)
                    up = True
                    starting.deadline = float("inf")
                    self._up.set()
                    task_status.started()
            if up:
                return
        raise SandboxError("it did not load its engine")

    async def _send(self, frame: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise anyio.ClosedResourceError
        async with self._send_lock:
            # A frame cut short by a cancelled sender would garble all later ones.
            with anyio.CancelScope(shield=True):
                await process.stdin.send(frame)

    def _settle(self, done: Done) -> None:
        pending = self._pending.get(done.id)
        if pending is not None:
            pending.outcome = done.outcome
            pending.done.set()


class _Pending:
    """A job that is waited for. Its outcome stays `Lost` unless a better one comes."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcome: Outcome = Lost("the sandbox went away during the compile")


async def _end(process: Process) -> None:
    """Close its stdin, wait, kill if need be, reap. Not to be cancelled: a zombie would stay."""
    with anyio.CancelScope(shield=True):
        if process.stdin is not None:
            try:
                await process.stdin.aclose()
            except (anyio.BrokenResourceError, OSError):
                pass
        with anyio.move_on_after(EXIT_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()
