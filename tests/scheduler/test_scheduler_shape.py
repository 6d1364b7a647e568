"""What the scheduler is as a program: its flags, its imports, its cost per step, what it exports."""

from __future__ import annotations

import subprocess
import sys
import time

from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Result
from phloem_scheduler.__main__ import app
from phloem_scheduler.actions import SendPlan
from phloem_scheduler.load import CoreCollector, load
from phloem_scheduler.settings import Settings

from .fake_worker import profile
from .world import World


def test_it_never_imports_torch_nor_another_service() -> None:
    code = (
        "import sys, phloem_scheduler.__main__; "
        "bad = [name for name in sys.modules if name.split('.')[0] in "
        "('torch', 'numpy', 'transformers', 'tokenizers', 'phloem', 'phloem_gpu_worker', 'phloem_gateway')]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_flag_and_a_bad_one_exits_2() -> None:
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    shown = runner.invoke(app, ["--help"]).output
    for flag in (
        "chunk-ms",
        "chunk-tokens",
        "depth",
        "policy",
        "disable-radix-cache",
        "max-running",
        "max-queued",
        "nats-url",
    ):
        assert f"--{flag}" in shown
    refused = runner.invoke(app, [], env={"PHLOEM_DEPTH": "4"})
    assert refused.exit_code == 2
    assert "--depth (PHLOEM_DEPTH)" in refused.output


def test_a_step_of_64_decode_rows_costs_less_than_a_millisecond() -> None:
    world = World(
        Settings(chunk_tokens=8192),
        profile(pages=4000, page_size=16, slots=64, max_step_tokens=8192, context_length=4096),
    )
    for number in range(64):
        world.open([1 + number % 30, 2 + number // 30] * 20, max_tokens=500, ignore_eos=True)
    plans = [action.plan for action in world.core.decide(world.now) if isinstance(action, SendPlan)]
    best = float("inf")
    for at in range(200):
        plan = plans.pop(0)
        rows = len(plan.rows) // 4
        result = Result(plan.step, bytes([1]) * rows, pack_ids([5] * rows), forward_ms=1.0)
        start = time.perf_counter()
        world.core.result("w0", result)
        plans += [action.plan for action in world.core.decide(world.now) if isinstance(action, SendPlan)]
        if at > 50:
            best = min(best, time.perf_counter() - start)
    assert world.core.running == 64
    assert best < 0.001


def test_the_load_shares_credits_among_gateways_and_adds_up() -> None:
    world = World(Settings(chunk_tokens=64, max_queued=92), profile(page_size=4, slots=8))
    world.open([1] * 20, max_tokens=30, ignore_eos=True)
    world.steps(3)
    told = load(world.core, gateways=4, grammars=2)
    assert (told.credit_requests, told.credit_bytes) == (25, 16 << 20)
    assert told.pages_free + told.pages_cached + told.pages_used == told.pages_total == 64
    assert (told.running, told.waiting, told.workers, told.grammars, told.detokenisers) == (1, 0, 1, 2, 1)
    assert told.counters["phloem_scheduler_requests_total"] == 1


def test_slots_without_pages_are_not_promised() -> None:
    """Eight slots, pages for two: once others wait, a third that is let in for a slot would only be refused after tokenising."""
    world = World(Settings(chunk_tokens=256, max_queued=10, reserve=1.0), profile(page_size=4, slots=8, pages=16))
    assert load(world.core, gateways=1, grammars=0).credit_requests == 18
    for number in range(6):
        world.open([number + 1] * 20, max_tokens=10, ignore_eos=True)
    world.steps(2)
    told = load(world.core, gateways=1, grammars=0)
    assert 0 < told.running < 6
    assert told.credit_requests == 10 + told.running
    world.steps(60)
    assert load(world.core, gateways=1, grammars=0).credit_requests == 18


def test_metrics_show_the_invariants() -> None:
    world = World(shape=profile(page_size=4))
    world.open([1] * 20, max_tokens=30, ignore_eos=True)
    world.steps(3)
    registry = CollectorRegistry()
    registry.register(CoreCollector(lambda: world.core))
    text = generate_latest(registry).decode()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    pages = [values[f'phloem_scheduler_pages_{state}{{worker="w0"}}'] for state in ("free", "held", "cached")]
    assert sum(pages) == values['phloem_scheduler_pages{worker="w0"}'] == 64
    assert values['phloem_scheduler_rows{worker="w0"}'] == values["phloem_scheduler_locks"] == 1
    held = ("requests_live", "requests_running", "requests_waiting", "pages_used", "locks")
    assert [values[f"phloem_scheduler_{name}"] for name in held] == [1, 1, 0, 6, 1]
    assert values["phloem_scheduler_requests_total"] == 1
