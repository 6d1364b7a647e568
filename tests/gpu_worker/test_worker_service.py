"""The worker on a local bus, with a scheduler of a few lines at the other end."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import anyio
import numpy as np
import pytest

from phloem_bus.errors import ConfigError, HelloRefused
from phloem_gpu_worker.batch import Batch
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.stand_in import StandInRunner, next_token
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Plan, Result

from .together import DEVICES, SHAPE, opened, together


def hashes(ids: list[int], tokens: int) -> list[int]:
    ids = list(ids)
    for _ in range(tokens):
        ids.append(int(next_token(np.array(ids[-1:]), np.array([len(ids) - 1]), 1000)[0]))
    return ids[-tokens:]


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("device", DEVICES)
def test_plans_sent_ahead_come_back_in_order(backend: str, device: str) -> None:
    async def main() -> None:
        async with together(device) as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            worker = link.peer_profile.worker
            assert worker is not None
            assert (worker.page_size, worker.pages, worker.slots, worker.vocab_size) == (16, 64, 64, 1000)
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            for step in range(2, 10):
                link.send(Plan(step, pack_ids([3]), pack_ids([0])))
            results = await scheduler.reports_of(9)
            assert [result.step for result in results] == list(range(1, 10))
            assert [unpack_ids(result.ids)[0] for result in results] == hashes([1, 2, 3, 4], 9)
            assert all(result.forward_ms > 0 for result in results)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_step_voids_the_rest_and_a_new_session_starts_empty(backend: str, device: str) -> None:
    async def main() -> None:
        async with together(device) as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            link.send(Plan(2, pack_ids([5]), pack_ids([0])))
            link.send(Plan(3, pack_ids([3]), pack_ids([0])))
            first, second = await scheduler.reports_of(2)
            assert isinstance(first, Result)
            assert (second.step, "not live" in second.message) == (2, True)
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([2]), opens=(opened(3, [7, 8]),)))
            third = (await scheduler.reports_of(3))[2]
            assert list(unpack_ids(third.ids)) == hashes([7, 8], 1)

    anyio.run(main, backend=backend)


def test_only_one_scheduler_leads() -> None:
    async def main() -> None:
        async with together("thread") as world:
            leader = await world.scheduler("a", term=5)
            link = await leader.hello()
            rival = await world.scheduler("b", term=6)
            with pytest.raises(HelloRefused, match="fenced"):
                await rival.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            await leader.reports_of(1)
            await leader.presence.goodbye()
            await leader.lost.wait()
            link = await rival.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([1]), opens=(opened(3, [9]),)))
            assert isinstance((await rival.reports_of(1))[0], Result)
            late = await world.scheduler("c", term=4)
            with pytest.raises(HelloRefused, match="term 4 is over"):
                await late.hello()

    anyio.run(main)


class Held(StandInRunner):
    """Computes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(0.0, **SHAPE)
        self.go = threading.Event()

    def forward(self, batch: Batch) -> Any:
        self.go.wait(20)
        return super().forward(batch)


def test_a_peer_that_ignores_results_is_cut_off() -> None:
    runner = Held()

    async def main() -> None:
        async with together("offload", runner=runner) as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            for step in range(2, 200):
                link.send(Plan(step, pack_ids([3]), pack_ids([0])))
            await scheduler.lost.wait()
            assert not link.open
            runner.go.set()

    anyio.run(main)


def test_drain_waits_for_live_sequences_then_says_goodbye() -> None:
    async def main() -> None:
        async with together("thread") as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            await scheduler.reports_of(1)
            world.drain.set()
            with anyio.move_on_after(1.5):
                await world.ended.wait()
            assert not world.ended.is_set()
            link.send(Plan(2, pack_ids([3]), pack_ids([0])))
            await scheduler.reports_of(2)
            link.send(Plan(3, b"", b"", closes=pack_ids([3])))
            await world.ended.wait()
            await scheduler.left.wait()

    anyio.run(main)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("--dtype", {"dtype": "int8"}),
        ("--device", {"device": "tpu"}),
        ("--page-size", {"page_size": 24}),
        ("--kv-tokens", {"kv_tokens": 20}),
        ("--kv-memory-gb", {"kv_memory_gb": -1.0}),
        ("--max-rows", {"max_rows": 0}),
        ("--max-step-tokens", {"max_step_tokens": 64}),
        ("--max-context", {"max_context": 3}),
        ("--threads", {"threads": -1}),
        ("--model", {"model": " "}),
        ("--model", {"model": "stand-in:fast"}),
        ("--model", {"model": "stand-in:8:melt"}),
        ("--model", {"model": "stand-in:0:burn"}),
        ("--model", {"model": "stand-in:nan"}),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(**values)
    assert caught.value.setting == setting


def test_the_worker_needs_no_transformers(tmp_path: object) -> None:
    """Imports, loads the tiny model and builds a matcher in an interpreter where ``transformers`` can't be imported."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import phloem_gpu_worker.__main__\n"
        "from phloem_gpu_worker.config import WorkerConfig\n"
        "from phloem_gpu_worker.startup import load\n"
        "from llguidance import LLMatcher\n"
        "from phloem_proto.messages import Grammar\n"
        "core = load(WorkerConfig('tiny', kv_tokens=1024, dtype='float32'), 'tiny').core\n"
        "core.desk._build(Grammar('d', 'llguidance', 'regex', LLMatcher.grammar_from_regex('a')))\n"
        "print(core.runner.capacity.pages)\n"
    )
    environment = {"PHLOEM_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.stdout.strip() == "64", done.stderr
