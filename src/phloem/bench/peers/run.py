"""`phloem bench peer`: install if need be, start, wait until it answers, stay in the foreground, end it when we are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
from anyio.abc import Process

from phloem_model import resolve

from ..http1 import BadResponse, Client, ConnectFailed, Disconnected
from .base import Peer, PeerFailed, Start
from .venv import ensure

READY_S = 600.0
"""Longest wait for a peer to answer: vLLM compiles its kernels at the first start."""
ASK_EVERY_S = 0.5
STOP_S = 15.0
"""How long a peer may take to stop before it is killed."""
INTERRUPTED = 130

Say = Callable[[str], None]


def run_peer(peer: Peer, model: str, port: int, more: tuple[str, ...], say: Say) -> int:
    """Serve until the peer ends (exit code 1), or we are told to end it (130 for Ctrl-C, 0 for SIGTERM).

    Raises:
        PeerFailed, ModelError: it can't be installed, can't serve the model, or can't be started.
    """
    files = resolve(model, say)
    home = ensure(peer, say)
    start = peer.start(home, files, port, more)
    return anyio.run(_serve, peer, start, f"http://127.0.0.1:{port}", say)


async def _serve(peer: Peer, start: Start, url: str, say: Say) -> int:
    if await _answers(url, peer.ready_path):
        raise PeerFailed(f"something else answers at {url} already; choose another --port")
    # A folder of its own to run in: peers write caches and logs where they stand. A session of its own: the terminal's
    # Ctrl-C reaches only us, and whatever the peer starts can be ended with it.
    with (
        tempfile.TemporaryDirectory(prefix="phloem-peer-", ignore_cleanup_errors=True) as folder,
        anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
    ):
        process = await _open(start, folder)
        try:
            return await _first_of(process, signals, peer, url, say)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


async def _open(start: Start, folder: str) -> Process:
    try:
        return await anyio.open_process(
            start.command,
            cwd=folder,
            env={**os.environ, **start.env},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=None,
            start_new_session=True,
        )
    except OSError as error:
        raise PeerFailed(f"{Path(start.command[0]).name} could not be started: {error}") from error


async def _first_of(process: Process, signals: AsyncIterator[signal.Signals], peer: Peer, url: str, say: Say) -> int:
    """Wait for the peer's end or for a signal, saying when it is ready; returns the exit code."""
    code = 1

    async def watch_signals() -> None:
        nonlocal code
        async for number in signals:
            code = INTERRUPTED if number == signal.SIGINT else 0
            tasks.cancel_scope.cancel()
            return

    async def watch_process() -> None:
        await process.wait()
        say(f"{peer.name} ended with code {process.returncode}")
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_signals)
        tasks.start_soon(watch_process)
        if await _ready(url, peer.ready_path):
            say(f"{peer.name} serves at {url} (Ctrl-C ends it)")
        else:
            say(f"{peer.name} did not answer at {url} within {READY_S:.0f} s")
            tasks.cancel_scope.cancel()
    return code


async def _ready(url: str, path: str) -> bool:
    with anyio.move_on_after(READY_S):
        while True:
            if await _answers(url, path):
                return True
            await anyio.sleep(ASK_EVERY_S)
    return False


async def _answers(url: str, path: str) -> bool:
    client = Client(url)
    try:
        with anyio.fail_after(5):
            async with client.request("GET", path) as response:
                return response.status == 200
    except (ConnectFailed, Disconnected, BadResponse, TimeoutError):
        return False
    finally:
        await client.aclose()


async def _end(process: Process) -> None:
    """Ask the peer and all it started to stop; kill what is left after `STOP_S`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        with anyio.move_on_after(STOP_S):
            await process.wait()
    await process.aclose()
