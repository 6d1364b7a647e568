"""Ten thousand requests at once with the default model: the loop stays quick, health is answered, everybody ends."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .harness import eventually, gauge, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(3000)]

REQUESTS, PER_CALL = 10_000, 125
PROMPT, OUTPUT = 32, 4
LONGEST_PASS_S = 0.020
LONGEST_HEALTH_S = 0.100


def test_ten_thousand_requests_queued_at_once() -> None:
    rng = random.Random(1)
    calls = [
        {
            "input_ids": [[rng.randrange(1000, 40_000) for _ in range(PROMPT)] for _ in range(PER_CALL)],
            "sampling_params": {"temperature": 0, "max_new_tokens": OUTPUT, "ignore_eos": True},
        }
        for _ in range(REQUESTS // PER_CALL)
    ]
    environment = {
        "PHLOEM_MAX_LIVE": "12000",
        "PHLOEM_MAX_QUEUED": "12000",
        "PHLOEM_MAX_STREAMS": "12000",
        "PHLOEM_REQUEST_TIMEOUT": "3000",
    }
    with phloem("up", env=environment) as running:
        health: list[float] = []
        over = threading.Event()

        def ask_health() -> None:
            with httpx.Client(base_url=running.url, timeout=10) as client:
                while not over.wait(0.05):
                    start = time.perf_counter()
                    assert client.get("/health").status_code == 200
                    health.append(time.perf_counter() - start)

        def call(body: object) -> list[int]:
            reply = httpx.post(f"{running.url}/generate", json=body, timeout=2900)
            assert reply.status_code == 200, reply.text
            return [len(answer["output_ids"]) for answer in reply.json()]

        with ThreadPoolExecutor(len(calls) + 1) as pool:
            watch = pool.submit(ask_health)
            answers = [pool.submit(call, body) for body in calls]
            eventually(
                lambda: (
                    gauge(running, "phloem_scheduler_requests_waiting_queued") > REQUESTS * 0.9
                    or gauge(running, "phloem_scheduler_requests_waiting_queued")
                ),
                120,
                "all of them in the queue",
            )
            lengths = [length for answer in answers for length in answer.result(2900)]
            over.set()
            watch.result(10)
        assert lengths == [OUTPUT] * REQUESTS
        nothing_held(running, 10)
        longest = gauge(running, "phloem_scheduler_pass_seconds_max")
        health.sort()
        print(
            f"longest pass {longest * 1000:.1f} ms; health p50 {health[len(health) // 2] * 1000:.1f} ms,"
            f" p99 {health[int(len(health) * 0.99)] * 1000:.1f} ms, longest {health[-1] * 1000:.1f} ms of {len(health)}"
        )
        assert longest <= LONGEST_PASS_S
        assert health[-1] <= LONGEST_HEALTH_S
