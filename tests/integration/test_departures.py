"""A client that goes away gives its pages back within 2 s, at whatever stage it leaves."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.integration.harness import Running, eventually, gauge, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    environment = {"PHLOEM_CHUNK_TOKENS": "16", "PHLOEM_MAX_ROWS": "4", "PHLOEM_KV_TOKENS": "8192"}
    with phloem("serve", "--model", "smollm2", env=environment) as started:
        yield started


def send(running: Running, **body: Any) -> socket.socket:
    """Open a connection, send a completion request, and leave the reply unread."""
    payload = msgspec.json.encode({"model": "smollm2", **body})
    connection = socket.create_connection(("127.0.0.1", running.http_port), timeout=10)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def all_free_within_2_s(running: Running, left_at: float) -> None:
    nothing_held(running, 2.5)
    assert time.monotonic() - left_at < 3.0


LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_decoding(running: Running, stream: bool) -> None:
    connection = send(running, prompt="Once upon a time", stream=stream, **LONG)
    eventually(lambda: gauge(running, "phloem_worker_slots_live") == 1, 10, "never ran")
    connection.close()
    all_free_within_2_s(running, time.monotonic())


def test_leaving_while_several_choices_decode(running: Running) -> None:
    connection = send(running, prompt="Once upon a time", n=3, **LONG)
    eventually(lambda: gauge(running, "phloem_worker_slots_live") == 3, 10, "never ran")
    connection.close()
    all_free_within_2_s(running, time.monotonic())


def test_leaving_while_waiting_and_in_a_prefill_chunk(running: Running) -> None:
    busy = [send(running, prompt=f"Story {i}: once", **LONG) for i in range(4)]
    eventually(lambda: gauge(running, "phloem_worker_slots_live") == 4, 20, "never ran")
    waiting = send(running, prompt="word " * 1500, **LONG)
    eventually(lambda: gauge(running, "phloem_scheduler_requests_waiting") == 1, 10, "never waited")
    for connection in busy:
        connection.close()
    eventually(lambda: gauge(running, "phloem_scheduler_requests_running") == 1, 10, "was never admitted")
    waiting.close()
    all_free_within_2_s(running, time.monotonic())


def test_leaving_at_once_and_while_tokenising(running: Running) -> None:
    for size in (1, 1000, 200_000):
        connection = send(running, prompt="word " * size, max_tokens=4)
        connection.close()
    all_free_within_2_s(running, time.monotonic())
    assert httpx.get(f"{running.url}/health", timeout=5).status_code == 200
