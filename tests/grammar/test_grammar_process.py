"""`python -m phloem_grammar` as a process, over a real nats-server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions
from phloem_bus.node import Node
from phloem_model.tiny import write_tiny
from phloem_proto.messages import Compile, Verdict
from phloem_proto.subjects import Role
from tests.bus.server import NatsServer
from tests.grammar.judging import schema, until

pytestmark = pytest.mark.integration


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


def spawn(*arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHLOEM_")}
    command = [sys.executable, "-m", "phloem_grammar", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


async def ask(url: str) -> Verdict:
    bus = await NatsBus.connect(NatsOptions(url))
    node = Node(
        bus, role=Role.SCHEDULER, instance="s", incarnation=1, namespace="n", model="tiny", rng=random.Random(1)
    )
    try:
        return await node.call(Role.GRAMMAR, "g1", Compile(schema({"type": "null"})), Verdict, timeout=20)
    finally:
        await bus.aclose()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_it_answers_and_leaves_no_process_behind(ending: signal.Signals, nats: NatsServer, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    ready = tmp_path / "ready"
    common = ["--model", str(tmp_path), "--served-model-name", "tiny", "--nats-url", nats.url, "--namespace", "n"]
    process = spawn(*common, "--instance", "g1", "--ready-file", str(ready))
    try:
        anyio.run(until, lambda: ready.exists() or process.poll() is not None)
        verdict = anyio.run(ask, nats.url)
        assert verdict.grammar is not None, verdict
        sandboxes = psutil.Process(process.pid).children(recursive=True)
        assert sandboxes
        process.send_signal(ending)
        _, said = process.communicate(timeout=20)
        assert process.returncode == (0 if ending is signal.SIGTERM else -signal.SIGKILL), said
        anyio.run(until, lambda: not any(sandbox.is_running() for sandbox in sandboxes))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("flag", ["--compile-cpu-seconds", "--compiles", "--compile-priority"])
def test_a_bad_setting_is_one_line_and_exit_2(flag: str) -> None:
    process = spawn(flag, "0")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith(f"error: {flag} (PHLOEM_{flag[2:].replace('-', '_').upper()}): must be ")
    assert said.count("\n") == 1
