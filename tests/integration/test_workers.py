"""Several workers under one scheduler: where requests go, and that none is lost or refused when a worker comes or goes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from .harness import Running, complete, eventually, gauge, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(300)]

SAMPLING = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    environment = {"PHLOEM_DTYPE": "float32", "PHLOEM_KV_TOKENS": "4096", "PHLOEM_THREADS": "1"}
    with phloem("up", "--model", "tiny", "--scale", "gpu-worker=2", env=environment) as started:
        eventually(lambda: gauge(started, "phloem_scheduler_workers") == 2, 60, "two workers")
        yield started


def prompts(groups: int, each: int) -> list[str]:
    """So many groups that share 160 bytes, with a question of their own; groups take turns."""
    return [f"{group} " * 80 + f"question {number}" for number in range(each) for group in range(groups)]


def outputs(running: Running, texts: list[str]) -> list[list[int]]:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: complete(running, text=text, sampling_params=SAMPLING), texts))
    return [reply["output_ids"] for reply in replies]


def radix(running: Running) -> Any:
    return httpx.get(f"{running.url}/radix", timeout=10).raise_for_status().json()


def worker_pids(running: Running) -> list[int]:
    below = psutil.Process(running.process.pid).children(recursive=True)
    return [child.pid for child in below if "phloem_gpu_worker" in child.cmdline()]


def test_two_workers_share_the_traffic_and_each_group_stays_where_it_is_cached(running: Running) -> None:
    outputs(running, prompts(groups=4, each=1))
    before = gauge(running, "phloem_scheduler_cached_tokens_total")
    texts = prompts(groups=4, each=6)
    for text in texts:  # one after another: no load speaks against the worker that has the group
        complete(running, text=text, sampling_params=SAMPLING)
    workers = radix(running)["workers"]
    assert len(workers) == 2
    assert all(worker["placed"] > 0 and worker["pages_cached"] > 0 for worker in workers)
    assert sum(worker["share"] for worker in workers) == pytest.approx(1, abs=0.01)
    # A group's 160 bytes are ten pages. Spread over two workers, each would have to compute every group's once.
    nothing_held(running)
    eventually(
        lambda: (
            gauge(running, "phloem_scheduler_cached_tokens_total") - before >= 150 * len(texts)
            or gauge(running, "phloem_scheduler_cached_tokens_total") - before
        ),
        5,
        "cached tokens",
    )
    assert gauge(running, "phloem_scheduler_placed_prefix_total") > 0


def test_nothing_is_refused_or_changed_while_workers_die_and_come_back(running: Running) -> None:
    texts = prompts(groups=3, each=8)
    undisturbed = outputs(running, texts)
    started = threading.Event()

    def kill_one() -> None:
        started.wait(10)
        os.kill(worker_pids(running)[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    started.set()
    again = [outputs(running, texts) for _ in range(3)]
    killer.join()
    assert again == [undisturbed] * 3
    eventually(lambda: gauge(running, "phloem_scheduler_workers") == 2, 60, "two workers again")
    eventually(lambda: len(radix(running)["workers"]) == 2, 10, "both in the picture")
    nothing_held(running)


def test_a_request_of_high_priority_takes_the_place_of_a_running_one_which_then_ends_as_if_nothing_had_happened() -> (
    None
):
    low = {"temperature": 0, "max_new_tokens": 600, "ignore_eos": True}
    arguments = ["--model", "tiny", "--dtype", "float32", "--max-rows", "1", "--preempt-above", "5"]
    with phloem("serve", *arguments) as running:
        alone = complete(running, text="a long story", sampling_params=low)["output_ids"]
        ended: list[str] = []

        def run(name: str, **body: Any) -> Any:
            reply = complete(running, **body)
            ended.append(name)
            return reply["output_ids"]

        with ThreadPoolExecutor(2) as pool:
            slow = pool.submit(run, "low", text="a long story", sampling_params=low)
            eventually(lambda: gauge(running, "phloem_scheduler_requests_running") >= 1, 10, "running")
            quick = pool.submit(run, "high", text="urgent", sampling_params=SAMPLING, priority=6)
            assert len(quick.result(60)) == 12
            assert slow.result(120) == alone
        assert ended == ["high", "low"]
        assert gauge(running, "phloem_scheduler_preempted_total") >= 1
