"""Start Phloem as a user would - a process - and talk to it over its ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

BIN = Path(sys.executable).parent
"""Where this environment's commands are."""


@dataclass
class Running:
    """A started Phloem."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Samples of the gateway's /metrics, by name with labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        samples: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def stop(self, deadline_s: float = 40) -> int:
        """SIGTERM, wait, return the exit code; kills what is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            raise AssertionError(f"did not stop within {deadline_s} s:\n{self.output()[-4000:]}") from None


def wait_ready(running: Running, deadline_s: float) -> None:
    """Until /health says 200."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if running.process.poll() is not None:
            raise AssertionError(f"ended with {running.process.returncode}:\n{running.output()[-4000:]}")
        try:
            if httpx.get(f"{running.url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready after {deadline_s} s:\n{running.output()[-4000:]}")


@contextmanager
def phloem(*arguments: str, ready_s: float = 90, env: dict[str, str] | None = None) -> Iterator[Running]:
    """``phloem serve|up ...`` on free ports, ready to answer; stopped with SIGTERM at the end."""
    http_port, grpc_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {
            **os.environ,
            "PHLOEM_HTTP_PORT": str(http_port),
            "PHLOEM_GRPC_PORT": str(grpc_port),
            "PYTHONWARNINGS": "default",
            **(env or {}),
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [str(BIN / "phloem"), *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        running = Running(process, http_port, grpc_port, log)
        try:
            wait_ready(running, ready_s)
            yield running
        finally:
            if process.poll() is None:
                running.stop()


def complete(running: Running, **body: Any) -> Any:
    """POST /generate and return its JSON; fails on any error status."""
    reply = httpx.post(f"{running.url}/generate", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply.json()


def eventually(check: Any, deadline_s: float, message: str) -> None:
    """Call ``check`` until it returns True; fail with ``message`` and its last value otherwise."""
    end = time.monotonic() + deadline_s
    while True:
        value = check()
        if value is True:
            return
        assert time.monotonic() < end, f"{message}: {value!r}"
        time.sleep(0.1)


HELD = re.compile(
    r"phloem_\w+_(slots_live|matchers_live|streams_live|requests_live|locks|pages_used|requests_running|requests_waiting)"
)
"""Gauges that say what is held; all are zero when nothing goes on."""


def held(running: Running) -> dict[str, float]:
    """What is held now, by name; empty when nothing is."""
    samples = {name: value for name, value in running.metrics().items() if HELD.fullmatch(name.partition("{")[0])}
    assert len(samples) >= 9, samples
    return {name: value for name, value in samples.items() if value}


def gauge(running: Running, name: str) -> float:
    """A sample's value, added up over its labels."""
    return sum(value for sample, value in running.metrics().items() if sample.partition("{")[0] == name)


def nothing_held(running: Running, deadline_s: float = 5) -> None:
    """Fail unless everything has been given back within ``deadline_s``."""
    eventually(lambda: held(running) or True, deadline_s, "still held")
