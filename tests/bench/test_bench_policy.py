"""`phloem bench policy`: the simulated clock by hand, the optimum by trying everything, and the command on a trace of a few lines."""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.policy import command, plan
from phloem.bench.policy.calls import Call, Timed, Window
from phloem.bench.policy.conversations import Fork, Forking, Talk, Talking
from phloem.bench.policy.cost import Cost
from phloem.bench.policy.jobs import jobs, traced
from phloem.bench.policy.optimum import optimum, page_paths
from phloem.bench.policy.plan import PolicyPlan
from phloem.bench.policy.simulate import Figures, Pool, Refused, Simulation
from phloem.bench.policy.trace import calls_of
from phloem.bench.traces import Arrival
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES
from phloem_scheduler.settings import Settings

PNG = b"\x89PNG\r\n\x1a\n"
ROUND = Cost(base_ms=10, prompt_ms=1, row_ms=2, attention_ms=0)
IN_ORDER = Settings(policy="fcfs", max_running=1, max_queued=1 << 20, chunk_tokens=16_384)
"""One call after another, each prompt in one step."""


def call(prompt: list[int], answer: int = 1, base: int = 1 << 20) -> Call:
    return Call(pack_ids(prompt), array("I", range(base, base + answer)))


def invoke(*arguments: str, **env: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["policy", *arguments, "--quiet"], env={"COLUMNS": "120", "PHLOEM_DATA": "", **env}
    )
    return result.exit_code, result.output


# --- The clock ------------------------------------------------------------------------------------------------------------


def test_a_call_takes_what_its_steps_cost() -> None:
    simulation = Simulation(IN_ORDER, Pool(64, 4), ROUND, Timed([0.0], [call(list(range(20)), answer=3)]))
    figures = simulation.run()
    # One step of 20 prompt tokens, two of one row; plans that were sent beyond the end cost their time, but nobody waits for them.
    assert figures.wait_p50_s == pytest.approx(0.030)
    assert figures.makespan_s == pytest.approx(0.030 + 2 * 0.012)
    assert (figures.calls, figures.prompt_tokens, figures.prefill_tokens) == (1, 20, 20)


def test_attention_costs_by_what_a_row_attends_to() -> None:
    cost = Cost(base_ms=10, prompt_ms=0, row_ms=0, attention_ms=8)
    figures = Simulation(IN_ORDER, Pool(600, 4), cost, Timed([0.0], [call(list(range(2048)), answer=2)])).run()
    assert figures.makespan_s == pytest.approx(0.010 + 0.010 + 2 * 0.008)


def test_a_wait_begins_when_the_call_comes() -> None:
    prompts = [list(range(start, start + 20)) for start in (100, 200, 300)]
    clients = Timed([0.0, 0.0, 1.0], [call(prompt) for prompt in prompts])
    simulation = Simulation(IN_ORDER, Pool(64, 4), ROUND, clients)
    figures = simulation.run()
    assert sorted(simulation.waits.values()) == pytest.approx([0.030, 0.030, 0.060])
    assert figures.makespan_s == pytest.approx(1.030)


def test_a_shared_prefix_is_computed_once() -> None:
    prefix = list(range(40))
    clients = Timed([0.0, 1.0], [call([*prefix, 100]), call([*prefix, 200, 201])])
    figures = Simulation(IN_ORDER, Pool(64, 4), ROUND, clients).run()
    assert figures.prefill_tokens == 41 + 2
    assert figures.hit_share == pytest.approx(40 / (41 + 42))


def test_a_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Refused, match="at most 16 fit"):
        Simulation(IN_ORDER, Pool(4, 4), ROUND, Timed([0.0], [call(list(range(20)))])).run()


@pytest.mark.parametrize("costs", [(-1, 1, 1, 1), (0, 0, 1, 1)])
def test_costs_that_make_no_sense_are_refused(costs: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"negative|take time"):
        Cost(*costs)


# --- The workloads --------------------------------------------------------------------------------------------------------


def test_a_turn_finds_all_that_was_said_before() -> None:
    talk = Talk(conversations=2, turns=4, first_tokens=50, user_tokens=9, answer_tokens=14)
    figures = Simulation(Settings(), Pool(1000, 4), ROUND, Talking(talk, seed=1)).run()
    said = [50 + turn * (9 + 14) for turn in range(4)]
    # The last token of an answer has no KV, and only whole pages are kept.
    found = [0, *((prompt - 9 - 1) // 4 * 4 for prompt in said[1:])]
    assert figures.calls == 8
    assert figures.prompt_tokens == 2 * sum(said)
    assert figures.prefill_tokens == 2 * sum(prompt - cached for prompt, cached in zip(said, found, strict=True))


def test_users_think_between_turns() -> None:
    talk = Talk(conversations=1, turns=3, first_tokens=32, user_tokens=8, answer_tokens=4)
    quick, slow = (
        Simulation(Settings(), Pool(100, 4), ROUND, Talking(replace(talk, think_s=s), 0)).run() for s in (0.0, 5.0)
    )
    assert slow.makespan_s == pytest.approx(quick.makespan_s + 10.0)
    assert slow.wait_p99_s == pytest.approx(quick.wait_p99_s)


def test_agents_fork_from_one_trunk_and_once_more() -> None:
    fork = Fork(
        trunk_tokens=64, forks=3, sub_forks=2, turns=4, task_tokens=16, tool_tokens=8, answer_tokens=4, tool_s=0.1
    )
    calls = Forking(fork, seed=0).calls
    assert len(calls) == 3 * (2 + 2 * 2)
    assert len({one.ids[: 64 * 4] for one in calls}) == 1
    assert len({one.ids[: 80 * 4] for one in calls}) == 3
    figures = Simulation(Settings(), Pool(2000, 4), ROUND, Forking(fork, 0)).run()
    assert figures.calls == len(calls)
    assert figures.prefill_tokens < sum(one.prompt_tokens for one in calls) / 3


def test_a_trace_becomes_calls_a_sixteenth_as_long() -> None:
    arrivals = [
        Arrival(0.0, 1200, 40, (7, 8, 9)),
        Arrival(1.0, 1100, 1, (7, 8, 3)),
        Arrival(2.0, 2048, 320, (7,)),  # blocks that cover a part of the prompt only
    ]
    first, second, third = calls_of(arrivals)
    assert [one.prompt_tokens for one in (first, second, third)] == [75, 69, 128]
    assert [len(one.answer) for one in (first, second, third)] == [2, 1, 20]
    assert first.ids[: 64 * 4] == second.ids[: 64 * 4]
    assert first.ids[: 65 * 4] != second.ids[: 65 * 4]
    assert first.ids[: 32 * 4] == third.ids[: 32 * 4]
    assert len(set(unpack_ids(third.ids))) == 128
    answers = {token for one in (first, second, third) for token in one.answer}
    assert len(answers) == 23
    assert not answers & {token for one in (first, second, third) for token in unpack_ids(one.ids)}


def test_so_many_requests_always_wait() -> None:
    clients = Window([call([number]) for number in range(10)], visible=4)
    assert len(clients.due(0.0, waiting=0)) == 4
    assert len(clients.due(0.0, waiting=4)) == 0
    assert [one.ids for one in clients.due(0.0, waiting=1)] == [pack_ids([number]) for number in (4, 5, 6)]
    assert len(clients.due(0.0, waiting=0)) == 3
    assert not clients.due(0.0, waiting=0)


# --- Policies -------------------------------------------------------------------------------------------------------------


def prefill(workload: str, policies: tuple[str, ...], **more: Any) -> list[int]:
    chosen = PolicyPlan(workloads=(workload,), policies=policies, **more)
    return [job.run().figures.prefill_tokens for job in jobs(chosen, traced(chosen))]


def test_longest_prefix_first_computes_far_less_of_interleaved_conversations() -> None:
    lpm, fcfs = prefill("recorded", ("lpm", "fcfs"))  # 3 of 20 turns, room for one and a half of them
    assert fcfs / lpm > 2.7


def test_it_does_so_for_live_conversations_that_run_one_by_one() -> None:
    lpm, fcfs = prefill("conversations", ("lpm", "fcfs"), max_running=1)
    assert fcfs / lpm > 2.7


def test_with_room_for_everything_no_policy_computes_anything_twice() -> None:
    assert len(set(prefill("conversations", tuple(POLICIES), room=4.0))) == 1


def test_a_miss_among_endless_hits_waits_as_long_as_ageing_lets_it() -> None:
    sweep = (0.0, 2.0, 6.0)
    rows = [job.run() for job in jobs(PolicyPlan(workloads=("ageing",), ageing_sweep=sweep), traced(PolicyPlan()))]
    waits = [row.miss_wait_s or 0.0 for row in rows]
    assert [row.ageing_s for row in rows] == list(sweep)
    for ageing_s, wait in zip(sweep, waits, strict=True):
        assert waits[0] + ageing_s / 2 < wait + 1e-9 <= waits[0] + ageing_s + 0.2


# --- Evictions ------------------------------------------------------------------------------------------------------------


def in_order(calls: list[Call], pool: Pool, visible: int, demand_aware: bool = True) -> Figures:
    return Simulation(IN_ORDER, pool, ROUND, Window(calls, visible), demand_aware).run()


def branching(seed: int, count: int) -> list[Call]:
    """Prompts that go on from one another at random."""
    rng = random.Random(seed)
    own = iter(range(1000, 1 << 20))
    stems = [[next(own) for _ in range(rng.randint(4, 24))] for _ in range(4)]
    calls = []
    for _ in range(count):
        stem = rng.choice(stems)
        prompt = stem[: rng.randint(1, len(stem))] + [next(own) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.4:
            stems.append(prompt)
        calls.append(call(prompt, rng.randint(1, 6), next(own) << 20))
    return calls


def tight(calls: list[Call], page_size: int, seed: int) -> Pool:
    """Room for the longest call and a little more."""
    return Pool(max(-(-one.tokens // page_size) for one in calls) + random.Random(seed).randint(0, 20), page_size)


@pytest.mark.parametrize("seed", range(40))
def test_who_sees_everybody_evicts_as_well_as_can_be(seed: int) -> None:
    calls = branching(seed, 40)
    pool = tight(calls, 2, seed)
    best = optimum(calls, pool)
    assert in_order(calls, pool, visible=40).prefill_tokens == best.prefill_tokens
    assert in_order(calls, pool, visible=3).prefill_tokens >= best.prefill_tokens
    assert in_order(calls, pool, visible=40, demand_aware=False).prefill_tokens >= best.prefill_tokens


def test_prompts_in_a_circle_are_where_lru_finds_nothing() -> None:
    calls = [call([number % 4 * 100 + at for at in range(16)], base=number << 10) for number in range(100, 140)]
    pool = Pool(12, 4)  # three of the four prompts
    plain, aware = (in_order(calls, pool, visible=8, demand_aware=one) for one in (False, True))
    assert plain.hit_share == 0
    assert aware.hit_share > 0.3
    assert aware.prefill_tokens == optimum(calls, pool).prefill_tokens


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    rng = random.Random(seed)
    calls = [call([rng.randrange(2) for _ in range(rng.randint(2, 4))], base=number << 10) for number in range(1, 8)]
    pool = Pool(max(one.tokens for one in calls) + rng.randint(0, 2), 1)
    assert optimum(calls, pool).prefill_tokens == sum(one.prompt_tokens for one in calls) - most_hits(calls, pool)


def most_hits(calls: list[Call], pool: Pool) -> int:
    """Most tokens (pages of one token) that can be found cached, whatever is kept after each call."""
    paths = [tuple(path) for path in page_paths(calls, 1)]
    parent = {page: above for path in paths for above, page in zip((0, *path), path, strict=False)}

    @cache
    def best(at: int, cached: frozenset[int]) -> int:
        if at == len(calls):
            return 0
        hits = 0
        while hits < len(paths[at]) - 1 and paths[at][hits] in cached:
            hits += 1
        # While it runs, only so many other pages can stay; of what is there after it, anything may be dropped later.
        others = sorted(cached - set(paths[at]))
        stay = min(len(others), pool.pages - (calls[at].tokens - 1))
        return hits + max(best(at + 1, closed({*kept, *paths[at]})) for kept in combinations(others, stay))

    def closed(pages: set[int]) -> frozenset[int]:
        return frozenset(page for page in pages if parent[page] == 0 or parent[page] in pages)

    return best(0, frozenset())


# --- The command ----------------------------------------------------------------------------------------------------------


def trace_file(folder: Path, count: int = 60) -> Path:
    """Conversations of two blocks and more, in Mooncake's format."""
    rng = random.Random(3)
    blocks = iter(range(100, 1 << 20))
    talks = [[1, next(blocks)] for _ in range(8)]
    lines = []
    for number in range(count):
        talk = rng.choice(talks)
        talk.append(next(blocks))
        entry = {
            "timestamp": number * 500,
            "input_length": len(talk) * 512 - 100,
            "output_length": 64,
            "hash_ids": talk,
        }
        lines.append(json.dumps(entry))
    path = folder / "mooncake_conversation_trace.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_workload_in_small_is_shown_written_and_drawn(tmp_path: Path) -> None:
    trace_file(tmp_path)
    output, picture = tmp_path / "policy.json", tmp_path / "policy.png"
    names = [part for workload in plan.WORKLOADS for part in ("--workload", workload)]
    code, shown = invoke(
        "--quick", *names, "--policy", "lpm", "--policy", "fcfs", "--output", str(output), "--plot", str(picture),
        PHLOEM_DATA=str(tmp_path),
    )  # fmt: skip
    assert code == 0, shown
    assert picture.read_bytes().startswith(PNG)
    document = json.loads(output.read_bytes())
    assert document["kind"] == "phloem-bench-policy"
    assert document["plan"]["cost"]["base_ms"] == 6.0
    assert {row["workload"] for row in document["rows"]} == set(plan.WORKLOADS)
    for workload in plan.WORKLOADS:
        assert f"{workload}: " in shown
    for row in document["rows"]:
        figures = row["figures"]
        assert 0 < figures["prefill_tokens"] <= figures["prompt_tokens"]
        assert 0 <= figures["wait_p50_s"] <= figures["wait_p99_s"] <= figures["makespan_s"]
    evictions = [row for row in document["rows"] if row["workload"] == "eviction"]
    for best in document["optima"]:
        own = {
            row["visible"] if row["demand_aware"] else 0: row
            for row in evictions
            if row["pool_pages"] == best["pool_pages"]
        }
        assert own[0]["gap_closed"] in (0, None)
        assert own[64]["figures"]["prefill_tokens"] == best["prefill_tokens"]  # all 60 requests are visible
        assert own[16]["figures"]["prefill_tokens"] >= best["prefill_tokens"]


def test_equal_options_give_equal_figures(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    rows = []
    for name in ("a.json", "b.json"):
        code, shown = invoke(
            "--quick",
            "--workload",
            "agents",
            "--workload",
            "trace",
            "--trace",
            str(path),
            "--output",
            str(tmp_path / name),
        )
        assert code == 0, shown
        rows.append(json.loads((tmp_path / name).read_bytes())["rows"])
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "best"], "--policy must be one of lpm"),
        (["--eviction", "none"], "--eviction must be one of lru"),
        (["--workload", "chat"], "--workload must be one of conversations"),
        (["--workload", "trace"], "--trace is needed"),
        (["--room", "0.5"], "--room must be at least 1"),
        (["--pool", "0"], "larger than 0 %"),
        (["--visible", "0"], "--visible must be at least 1"),
        (["--speedup", "0"], "--speedup"),
        (["--ageing", "-1"], "ageing must not be negative"),
        (["--turns", "0"], "must be at least 1"),
        (["--think-s", "-1"], "must not be negative"),
        (["--agent-turns", "1"], "agents need 2 turns"),
        (["--base-ms", "-1"], "costs must not be negative"),
        (["--workload", "agents", "--agents-pool", "1"], "the longest request needs"),
    ],
)
def test_wrong_options_are_named_in_one_line(arguments: list[str], said: str) -> None:
    code, shown = invoke(*arguments)
    assert code == 2
    assert said in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_text('{"timestamp": 0}\n'), "line 1"),
        (lambda path: path.write_text(""), "no request"),
        (lambda path: None, "No such file"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    code, shown = invoke("--workload", "trace", "--trace", str(path))
    assert code == 1
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_without_matplotlib_a_plot_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, shown = invoke("--quick", "--plot", str(tmp_path / "policy.png"))
    assert (code, shown) == (2, "phloem bench: --plot needs matplotlib: install Phloem with the extra 'bench'\n")


def test_the_help_names_what_there_is() -> None:
    assert command.WORKLOADS == plan.WORKLOADS
    assert tuple(POLICIES) == command.POLICIES
    assert tuple(EVICTION) == command.EVICTIONS


def test_the_flags_default_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[PolicyPlan] = []
    monkeypatch.setattr(command, "_simulate", lambda found, *_: plans.append(found))
    assert invoke()[0] == 0
    assert plans == [PolicyPlan()]
