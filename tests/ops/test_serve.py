"""`phloem serve`: as a process with signals and exit codes, and as a cluster inside a test."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest

from phloem.serve.cluster import Cluster, ServiceEnded
from phloem.testing import local_cluster
from phloem.testing.cluster import tiny_settings
from phloem_bus.errors import ConfigError
from phloem_bus.service import ServiceContext
from phloem_gateway.config import GatewayConfig
from phloem_gateway.listening import bind
from phloem_proto.subjects import Role

DEADLINE_S = 60.0
TINY = ("serve", "--model", "tiny", "--threads", "1", "--kv-tokens", "4096", "--grpc-port", "-1")


@dataclass
class Serving:
    process: subprocess.Popen[bytes]
    output: Path
    port: int

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def until_says(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Serving]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    output = folder / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "phloem", *TINY, "--http-port", str(port), *flags],
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Serving(process, output, port)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phloem", *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_it_says_how_to_try_it_and_lets_a_stream_finish(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with serving(tmp_path, "--ready-file", str(ready)) as server:
        server.until_says("Phloem serves tiny.")
        assert ready.exists()
        curl = re.search(r"try it +curl (\S+) .*\n +-d '(.*)'\n", server.text)
        assert curl is not None
        reply = httpx.post(curl[1], content=curl[2], headers={"content-type": "application/json"}, timeout=30)
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] > 0
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
        with httpx.stream("POST", f"http://127.0.0.1:{server.port}/generate", json=body, timeout=30) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert '"length"' in "".join(rest[-4:])
        assert server.process.wait(DEADLINE_S) == 0
        assert not ready.exists()
    assert " is here" not in server.text, "five services of one process need no introduction"


def test_a_second_signal_cuts_it_short(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.until_says("Phloem serves tiny.")
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}}
        with httpx.stream("POST", f"http://127.0.0.1:{server.port}/generate", json=body, timeout=30) as reply:
            next(reply.iter_lines())
            server.process.send_signal(signal.SIGINT)
            server.until_says("draining")
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(DEADLINE_S) == 130


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--model", "tiny", "--http-port", str(port))
    assert done.returncode == 2
    assert done.stderr == f"error: --http-port (PHLOEM_HTTP_PORT): port {port} is in use\n"
    assert done.stdout == ""


def test_an_address_that_is_not_ours_is_not_told_as_a_port_in_use() -> None:
    done = run("serve", "--model", "tiny", "--http-host", "192.0.2.1", "--http-port", "8000")  # kept for documentation
    assert done.returncode == 2
    assert done.stderr.startswith("error: --http-port (PHLOEM_HTTP_PORT): can't listen on 192.0.2.1:8000: ")
    assert done.stderr.count("\n") == 1


def has_ipv6() -> bool:
    try:
        bind("::1", 0, "--http-port").close()
    except ConfigError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_serves_on_ipv6_and_shows_keys_where_they_are_wanted(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    with serving(tmp_path, "--http-host", "::1", "--api-keys-file", str(keys)) as server:
        server.until_says("Phloem serves tiny.")
        assert f"curl http://[::1]:{server.port}/v1/chat/completions" in server.text
        assert "-H 'authorization: Bearer KEY'" in server.text
        assert httpx.get(f"http://[::1]:{server.port}/health").status_code == 200


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (("--model", "no/such/model"), "--model (PHLOEM_MODEL)"),
        (("--page-size", "3"), "--page-size (PHLOEM_PAGE_SIZE)"),
        (("--dtype", "int3"), "--dtype (PHLOEM_DTYPE)"),
        (("--depth", "9"), "--depth (PHLOEM_DEPTH)"),
        (("--log-format", "xml"), "--log-format (PHLOEM_LOG_FORMAT)"),
        (
            ("--model", "tiny", "--api-keys-file", "/nowhere", "--http-port", "0"),
            "--api-keys-file (PHLOEM_API_KEYS_FILE)",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_one_line(flags: tuple[str, ...], setting: str) -> None:
    done = run("serve", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {setting}: ")
    assert done.stderr.count("\n") == 1


def test_wrong_usage_is_2() -> None:
    assert run("serve", "--no-such-flag").returncode == 2
    assert run("no-such-verb").returncode == 2


def test_a_model_without_its_flag_is_told_the_flag() -> None:
    done = run("serve", "smollm2", "--http-port", "0")
    said = "phloem serve: unexpected argument 'smollm2'; a model is named with --model smollm2\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, said, "")


@pytest.mark.parametrize("command", [("pull",), ("serve", "--http-port", "0", "--model")])
def test_a_model_that_nobody_knows_is_wrong_usage(command: tuple[str, ...]) -> None:
    done = run(*command, "no-such-model")
    assert done.returncode == 2
    assert ": no model 'no-such-model'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("pull",), ("serve", "--http-port", "0", "--model")])
def test_a_model_that_cannot_be_fetched_is_a_failure(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = run(*command, "nobody/nothing")
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"phloem {command[0]}: nobody/nothing could not be fetched from the hub: ")


@pytest.mark.anyio
async def test_a_cluster_serves_inside_a_test() -> None:
    settings = replace(tiny_settings(), gateway=GatewayConfig(http_port=None, grpc_port=None))
    async with local_cluster(settings) as cluster:
        transport = httpx.ASGITransport(cluster.gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://phloem") as client:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            page = (await client.get("/metrics")).text
    headings = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(headings) == len(set(headings)), "two services' metrics of one name belong under one heading"
    samples = re.findall(r"^(?!#)(.+) \S+$", page, re.MULTILINE)
    assert len(samples) == len(set(samples)), "scrapers refuse a page with two samples of one name and labels"
    told_by = {name.split("_")[1] for name in headings if name.startswith("phloem_")}
    assert told_by >= {role.value for role in Role}, "the gateway's page tells of all five"


@pytest.mark.anyio
async def test_what_a_service_raises_ends_the_cluster() -> None:
    settings = replace(tiny_settings(), gateway=GatewayConfig(http_port=None, grpc_port=None))
    gateway, _ = settings.services()
    cluster = Cluster([gateway, _Quitter()], model="tiny", seed=1)
    with anyio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
        await cluster.run(anyio.Event())
    (error,) = caught.value.exceptions
    assert isinstance(error, ServiceEnded)
    assert error.role is Role.GRAMMAR


class _Quitter:
    role = Role.GRAMMAR

    async def run(self, ctx: ServiceContext) -> None:
        await anyio.lowlevel.checkpoint()
