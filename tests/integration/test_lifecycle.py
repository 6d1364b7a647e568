"""Starting, draining, refusing: what an operator sees."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.harness import BIN, Running, complete, eventually, gauge, phloem
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(180)]
SLOW = {"sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}}


def below(running: Running) -> list[psutil.Process]:
    """The processes that it started, and theirs."""
    return psutil.Process(running.process.pid).children(recursive=True)


@pytest.mark.parametrize("way", ["serve", "up"])
def test_sigterm_finishes_what_runs_and_exits_0(way: str) -> None:
    with phloem(way, "--model", "tiny") as running:
        answers: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: answers.append(complete(running, text="Once", **SLOW)))
        asking.start()
        eventually(lambda: gauge(running, "phloem_worker_slots_live") == 1, 20, "never ran")
        started = below(running)
        assert running.stop() == 0
        asking.join(10)
        assert answers[0]["meta_info"]["completion_tokens"] == 400
        assert not [process for process in started if process.is_running()]


def test_a_second_interrupt_kills() -> None:
    with phloem("serve", "--model", "tiny") as running:
        slow = {"max_new_tokens": 1900, "ignore_eos": True}
        body = {"text": ["Once"] * 8, "sampling_params": slow}
        asking = threading.Thread(target=lambda: swallow(running, body))
        asking.start()
        eventually(lambda: gauge(running, "phloem_worker_slots_live") > 0, 20, "never ran")
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
        assert running.process.wait(10) in (0, 130)
        asking.join(10)


def swallow(running: Running, body: dict[str, Any]) -> None:
    try:
        httpx.post(f"{running.url}/generate", json=body, timeout=60)
    except httpx.TransportError:
        pass


def test_a_killed_worker_is_restarted_and_serves_again() -> None:
    with phloem("up", "--model", "tiny") as running:
        before = complete(running, text="Once", sampling_params={"max_new_tokens": 4, "temperature": 0})
        workers = [process for process in below(running) if "phloem_gpu_worker" in process.cmdline()]
        assert workers
        for worker in workers:
            worker.kill()
        eventually(lambda: httpx.get(f"{running.url}/health", timeout=5).status_code == 503, 10, "stayed ready")
        started = time.monotonic()
        refused = httpx.post(f"{running.url}/generate", json={"text": "Once"}, timeout=10)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert time.monotonic() - started < 1.5
        eventually(lambda: httpx.get(f"{running.url}/health", timeout=5).status_code == 200, 40, "never came back")
        after = complete(running, text="Once", sampling_params={"max_new_tokens": 4, "temperature": 0})
        assert after["text"] == before["text"]


def test_a_gateway_without_a_broker_says_503_at_once() -> None:
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "phloem_gateway", "--nats-url", f"nats://127.0.0.1:{free_port()}", "--http-port", str(port),
            "--grpc-port", str(free_port()), "--model", "tiny",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        eventually(lambda: answers(f"http://127.0.0.1:{port}/live") == 200, 30, "never listened")
        assert answers(f"http://127.0.0.1:{port}/health") == 503
        started = time.monotonic()
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"model": "tiny", "prompt": "x"}, timeout=10)
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert time.monotonic() - started < 1.0
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output


def answers(url: str) -> int:
    try:
        return httpx.get(url, timeout=2).status_code
    except httpx.TransportError:
        return 0


def test_a_port_in_use_is_one_line_and_exit_2() -> None:
    with phloem("serve", "--model", "tiny") as running:
        second = subprocess.run(
            [
                str(BIN / "phloem"),
                "serve",
                "--model",
                "tiny",
                "--http-port",
                str(running.http_port),
                "--grpc-port",
                "0",
            ],
            capture_output=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert str(running.http_port) in (second.stdout + second.stderr).decode()
        assert "Traceback" not in (second.stdout + second.stderr).decode()
