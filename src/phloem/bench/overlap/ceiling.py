"""Measure how many tokens come out of the gateway if the device takes no time, and who spends what on each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from phloem_model import resolve

from ..http1 import Client, ConnectFailed, Disconnected
from .plan import STAND_IN_VOCABULARY, CeilingPlan
from .processes import (
    LOOPBACK,
    WORKER_NICE,
    ProcessFailed,
    free_port,
    gateway_command,
    nats_server,
    running,
    scheduler_command,
    tokenizer_command,
    worker_command,
)
from .throughput import CLIENT, Ceiling, Function, Profile, profile_of, unwatched
from .usage import Usage, between
from .watching import unless_one_ends

NAMESPACE = "ceiling"
DEVICE = "stand-in:0"
DEPTH = 2
READY_S = 60.0
RUN_S = 240.0
"""Longest time from the first request to the last token."""
WRITTEN_S = 20.0
"""Longest wait for the profiles to be written."""
LINE_BYTES = 4096


class NoVocabulary(ValueError):
    """Raised for a model whose tokenizer does not know all tokens that the stand-in draws."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The client's counts at a moment, and what everybody has used by then."""

    count: Mapping[str, Any]
    usage: Usage


async def ceiling(plan: CeilingPlan, folder: Path) -> Ceiling:
    """Measure it.

    Raises:
        ModelError: there is no tokenizer.
        NoVocabulary: it does not fit the stand-in.
        ProcessFailed, TimeoutError, OSError: it could not be done.
    """
    found, _ = await _run(plan, folder, profile=False)
    return found


async def profiles(plan: CeilingPlan, folder: Path, us_per_token: Mapping[str, float]) -> dict[str, Profile]:
    """Where it goes: by service, under the profiler, which slows all of them down. Raises as `ceiling`.

    Args:
        us_per_token: CPU time by process without it.
    """
    _, found = await _run(plan, folder, profile=True)
    return {name: unwatched(one, us_per_token[name] * one.tokens / 1e6) for name, one in found.items()}


async def _run(plan: CeilingPlan, folder: Path, *, profile: bool) -> tuple[Ceiling, dict[str, Profile]]:
    _check_vocabulary(plan.model)
    port = free_port()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(nats_server(folder))
        commands = {
            "tokenizer": tokenizer_command(broker.url, NAMESPACE, plan.model),
            "worker": worker_command(broker.url, NAMESPACE, DEVICE, plan.model, plan.streams),
            "scheduler": scheduler_command(broker.url, NAMESPACE, plan.model, DEPTH, plan.streams),
            "gateway": gateway_command(broker.url, NAMESPACE, plan.model, port),
        }
        files = {name: folder / f"{name}.profile" for name in commands} if profile else {}
        services = {}
        for name, command in commands.items():
            if profile:
                command = profiled(command, files[name])
            nice = WORKER_NICE if name == "worker" else 0
            services[name] = await stack.enter_async_context(running(name, command, folder, nice))

        assert broker.process is not None
        processes = {"nats-server": broker.process, **services}

        async def work() -> tuple[Ceiling, dict[str, Profile]]:
            await _ready(port)
            begin, end, whole = await _drive(plan, port, processes, services if profile else {})
            found = _figures(plan, begin, end, whole)
            return found, {name: await _profile(file, found.tokens) for name, file in files.items()}

        return await unless_one_ends(processes, folder, work)


def profiled(command: list[str], file: Path) -> list[str]:
    """``command`` (``python -m MODULE ...``) under the profiler."""
    python, _, *rest = command
    return [python, "-m", "phloem.bench.overlap.profiled", str(file), *rest]


def _check_vocabulary(model: str) -> None:
    files = resolve(model)
    if files.vocab_size < STAND_IN_VOCABULARY:
        raise NoVocabulary(
            f"the stand-in draws from {STAND_IN_VOCABULARY} tokens; {model} has {files.vocab_size}: name another --model"
        )


async def _ready(port: int) -> None:
    """Wait until a request could be served. Raises TimeoutError."""
    client = Client(f"http://{LOOPBACK}:{port}")
    try:
        with anyio.fail_after(READY_S):
            while not await _healthy(client):  # noqa: ASYNC110 - another process's state
                await anyio.sleep(0.1)
    finally:
        await client.aclose()


async def _healthy(client: Client) -> bool:
    try:
        async with client.request("GET", "/health") as response:
            await response.read()
            return response.status == 200
    except (ConnectFailed, Disconnected):
        return False


async def _drive(
    plan: CeilingPlan, port: int, processes: Mapping[str, Process], profiled: Mapping[str, Process]
) -> tuple[_Mark, _Mark, Mapping[str, Any]]:
    """The window's begin and end, and what the client counted in all."""
    marks = []
    with anyio.fail_after(RUN_S):
        async with _client(plan, port) as (client, lines):
            pids = {name: process.pid for name, process in {**processes, CLIENT: client}.items()}
            for _ in range(2):
                count = await _count(lines)
                marks.append(_Mark(count, Usage(pids)))
                for process in profiled.values():
                    os.kill(process.pid, signal.SIGUSR1)
            return marks[0], marks[1], await _count(lines)


@asynccontextmanager
async def _client(plan: CeilingPlan, port: int) -> AsyncIterator[tuple[Process, BufferedByteReceiveStream]]:
    """The client as a process, and what it says."""
    what = [LOOPBACK, str(port), plan.model, str(plan.streams), str(plan.tokens)]
    command = [sys.executable, "-m", "phloem.bench.overlap.client", *what]
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield process, BufferedByteReceiveStream(process.stdout)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def _count(lines: BufferedByteReceiveStream) -> Mapping[str, Any]:
    """The client's next line."""
    try:
        line: dict[str, Any] = json.loads(await lines.receive_until(b"\n", LINE_BYTES))
    except (anyio.EndOfStream, anyio.IncompleteRead):
        raise ProcessFailed("the client ended without a word") from None
    if line["what"] == "failed":
        raise ProcessFailed(f"the client failed: {line['why']}")
    return line


def _figures(plan: CeilingPlan, begin: _Mark, end: _Mark, whole: Mapping[str, Any]) -> Ceiling:
    tokens_per_event = plan.streams * plan.tokens / whole["events"]
    cores = len(os.sched_getaffinity(0))
    if end.count["events"] == begin.count["events"]:
        raise ProcessFailed("the first stream ended before all were under way: ask for more --stream-tokens")
    wall = end.usage.at - begin.usage.at
    return Ceiling(
        streams=plan.streams,
        tokens=(end.count["events"] - begin.count["events"]) * tokens_per_event,
        window_s=end.count["at"] - begin.count["at"],
        tokens_per_event=tokens_per_event,
        bytes_per_token=whole["bytes"] / (plan.streams * plan.tokens),
        cpu_s=between(begin.usage.cpu_s, end.usage.cpu_s),
        system_s=between(begin.usage.system_s, end.usage.system_s),
        cores=cores,
        busy_share=(end.usage.busy_s - begin.usage.busy_s) / wall / cores,
    )


async def _profile(file: Path, tokens: float) -> Profile:
    """What a service's profiler wrote. Raises TimeoutError."""
    path = anyio.Path(file)
    with anyio.fail_after(WRITTEN_S):
        while not await path.exists():  # noqa: ASYNC110 - another process writes it
            await anyio.sleep(0.05)
    found = json.loads(await path.read_text(encoding="utf-8"))
    return profile_of(found["cpu_s"], tokens, [Function(*one) for one in found["functions"]])
