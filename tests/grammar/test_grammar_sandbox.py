"""The sandbox: whatever a compile does, the service gets a typed outcome, soon, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import psutil
import pytest

from phloem_grammar.core import Bounds
from phloem_grammar.engine import Compiled, Died, Lost, Rejected, Task, TokenizerSource
from phloem_grammar.runner import SandboxRunner
from phloem_grammar.sandbox import SandboxError
from phloem_grammar.sandbox_server import starved
from phloem_grammar.sandbox_wire import JobLimits
from tests.grammar.judging import judge, new_core, refusal, regex, until

BOMBS = {"llguidance": "tests.grammar.bombs:Bombs"}
MB = 1 << 20

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def sandbox(digest: str = "", **limits: float) -> AsyncIterator[SandboxRunner]:
    """A runner whose engine is a bomb, with tight limits."""
    given = JobLimits(limits.get("cpu_s", 0.3), int(limits.get("memory_mb", 64)) * MB, limits.get("wall_s", 20.0))
    runner = SandboxRunner(TokenizerSource("", (), digest), given, priority="normal", engines=BOMBS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(runner.serve)
        yield runner
        tasks.cancel_scope.cancel()


async def run(runner: SandboxRunner, source: str) -> Compiled | Rejected | Died | Lost:
    return await runner.run("llguidance", Task("regex", source))


def server(runner: SandboxRunner) -> psutil.Process:
    pid = runner.servers["llguidance"].pid
    assert pid is not None
    return psutil.Process(pid)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("cpu", "cpu"),
        ("memory", "memory"),
        ("sudden memory", "memory"),
        ("raise", "memory"),
        ("segfault", "crash"),
        ("abort", "crash"),
        ("exit", "crash"),
    ],
)
async def test_each_way_to_die_is_told_apart_and_the_next_job_runs(source: str, cause: str) -> None:
    async with sandbox() as runner:
        before = server(runner).pid
        outcome = await run(runner, source)
        assert isinstance(outcome, Died)
        assert outcome.cause == cause
        after = await run(runner, "fine")
        assert isinstance(after, Compiled)
        assert 0 <= after.memory_bytes < 8 * MB
        assert server(runner).pid == before, "only the child died"


async def test_last_words_are_kept_short_and_flat() -> None:
    async with sandbox() as runner:
        outcome = await run(runner, "abort")
        assert isinstance(outcome, Died)
        assert outcome.detail == "SIGABRT: what(): last words"


@pytest.mark.parametrize("source", ["sleep", "stop"])
async def test_the_clock_ends_what_does_not_work_and_says_so(source: str) -> None:
    async with sandbox(wall_s=0.3) as runner:
        outcome = await run(runner, source)
        assert isinstance(outcome, Died)
        assert (outcome.cause, outcome.starved) == ("wall", False)


def test_waiting_for_a_cpu_is_told_from_being_stuck() -> None:
    assert starved(b"900000000 16000000000 300\n", wall_s=30.0)
    assert not starved(b"900000000 1000000000 300\n", wall_s=30.0)
    assert not starved(b"", wall_s=30.0)


async def test_output_is_bounded() -> None:
    async with sandbox() as runner:
        outcome = await run(runner, "noise")
        assert isinstance(outcome, Died | Rejected)
        assert isinstance(await run(runner, "fine"), Compiled)


async def test_a_large_result_comes_whole() -> None:
    async with sandbox() as runner:
        outcome = await run(runner, "large")
        assert isinstance(outcome, Compiled)
        assert len(outcome.source) == 3_000_000


async def test_a_child_holds_no_descriptor_of_the_server_or_of_other_jobs() -> None:
    async with sandbox() as runner, anyio.create_task_group() as tasks:
        tasks.start_soon(run, runner, "sleep")
        await until_child(server(runner))
        outcome = await run(runner, "descriptors")
        assert isinstance(outcome, Rejected)
        assert len(outcome.message.split(",")) == 5, "three standard ones, the result pipe, and the listing itself"
        tasks.cancel_scope.cancel()


async def test_jobs_run_beside_each_other() -> None:
    async with sandbox(wall_s=1.0) as runner:
        outcomes: list[object] = []

        async def one(source: str) -> None:
            outcomes.append(await run(runner, source))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "sleep")
            tasks.start_soon(one, "fine")
        assert isinstance(outcomes[0], Compiled)
        assert isinstance(outcomes[1], Died)


async def test_nothing_is_left_after_200_jobs() -> None:
    async with sandbox(cpu_s=0.1) as runner:
        await run(runner, "fine")
        process = server(runner)
        mine, theirs = psutil.Process().num_fds(), process.num_fds()
        for number in range(200):
            await run(runner, "segfault" if number % 20 == 0 else "fine")
        assert process.children() == []
        assert (psutil.Process().num_fds(), process.num_fds()) == (mine, theirs)
    assert not process.is_running()
    assert not any(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children())


async def test_a_killed_fork_server_is_started_again_and_its_jobs_are_lost() -> None:
    async with sandbox() as runner:
        first = server(runner)
        outcomes: list[object] = []

        async def one() -> None:
            outcomes.append(await run(runner, "sleep"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            child = await until_child(first)
            first.send_signal(signal.SIGKILL)
        assert isinstance(outcomes[0], Lost)
        assert isinstance(await run(runner, "fine"), Compiled)
        assert server(runner).pid != first.pid
        await until_gone(child)


async def test_children_die_with_the_service() -> None:
    async with sandbox() as runner, anyio.create_task_group() as tasks:
        tasks.start_soon(run, runner, "sleep")
        process = server(runner)
        child = await until_child(process)
        tasks.cancel_scope.cancel()
    await until_gone(child)
    assert not process.is_running()


async def until_child(process: psutil.Process) -> psutil.Process:
    await until(process.children)
    return process.children()[0]


async def until_gone(process: psutil.Process) -> None:
    await until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


async def test_an_engine_that_cannot_be_loaded_is_reported_once_at_start() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with sandbox("broken"):
            pytest.fail("it came up")
    assert caught.group_contains(SandboxError, match="no such tokenizer", depth=2) or caught.group_contains(
        SandboxError, match="no such tokenizer"
    )


async def test_waiting_does_not_block_the_event_loop() -> None:
    async with sandbox(wall_s=1.5) as runner:
        longest = 0.0

        async def beat() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await anyio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            await run(runner, "sleep")
            tasks.cancel_scope.cancel()
        assert longest < 1.0


async def test_a_bomb_is_run_once_and_then_refused_from_memory() -> None:
    async with sandbox() as runner:
        core = new_core(Bounds())
        began = time.perf_counter()
        first = refusal(await judge(core, runner, regex("cpu")))
        assert first.code == "grammar_too_large"
        assert time.perf_counter() - began < 10
        assert refusal(core.ask(10**9, regex("cpu"))) == first


async def test_compiles_have_the_priority_they_are_given() -> None:
    limits = JobLimits(cpu_s=0.3, memory_bytes=64 * MB, wall_s=20.0)
    runner = SandboxRunner(TokenizerSource("", (), ""), limits, priority="idle", engines=BOMBS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(runner.serve)
        tasks.start_soon(run, runner, "sleep")
        child = await until_child(server(runner))
        await until(lambda: os.sched_getscheduler(child.pid) == os.SCHED_IDLE)
        assert os.sched_getscheduler(server(runner).pid) != os.SCHED_IDLE, "who watches must not starve"
        tasks.cancel_scope.cancel()
