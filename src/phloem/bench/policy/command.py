"""The command `phloem bench policy`. What it does is imported when it is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ..options import check_files, fail, parts

if TYPE_CHECKING:
    from .plan import PolicyPlan

UNTRACED = ("conversations", "recorded", "agents", "ageing")
WORKLOADS = (*UNTRACED, "trace", "eviction")
POLICIES = ("lpm", "fcfs", "dfs-weight", "lof", "random", "priority")
EVICTIONS = ("lru", "lfu", "slru", "fifo", "mru", "filo", "priority")
"""As in `plan` and the scheduler, named here so that ``--help`` needs no import of them; a test keeps them equal."""
TRACE_FILE = "mooncake_conversation_trace.jsonl"
"""Looked for in $PHLOEM_DATA."""

COST, TALK, AGENTS, TRACE = "Cost of a step", "conversations and recorded", "agents", "trace and eviction"


def policy(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{' | '.join(WORKLOADS)}; may be repeated. Default: all that need no trace. conversations: each turn comes after the "
            "last answer; recorded: the same with all turns known beforehand; agents: they fork from one trunk; ageing: one request "
            "without anything cached among hits; trace: a recorded hour, by its times; eviction: the same in fixed order, LRU against "
            "eviction that sees who waits, against the optimum."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{' | '.join(POLICIES)}; may be repeated. Default: all. No workload has priorities: priority is as fcfs."
        ),
    ] = None,
    eviction: Annotated[
        list[str] | None, typer.Option(help=f"{' | '.join(EVICTIONS)}; may be repeated. Default: lru.")
    ] = None,
    base_ms: Annotated[float, typer.Option(help="Each step.", rich_help_panel=COST)] = 6.0,
    prompt_ms: Annotated[float, typer.Option(help="Each prompt token computed.", rich_help_panel=COST)] = 0.3,
    row_ms: Annotated[float, typer.Option(help="Each row that draws a token.", rich_help_panel=COST)] = 0.25,
    attention_ms: Annotated[
        float, typer.Option(help="Each 1,024 tokens that a row attends to.", rich_help_panel=COST)
    ] = 0.6,
    chunk_ms: Annotated[float, typer.Option(help="As the scheduler's.")] = 50.0,
    max_running: Annotated[int, typer.Option(help="As the scheduler's. eviction: always 1. ageing: always 8.")] = 256,
    ageing: Annotated[float, typer.Option(help="As the scheduler's, in seconds.")] = 30.0,
    ageing_sweep: Annotated[
        list[float] | None,
        typer.Option(help="Values for the workload ageing; may be repeated. Default: 0 2 5 10 20 30."),
    ] = None,
    page_size: Annotated[int, typer.Option(help="Tokens per KV page.")] = 16,
    conversations: Annotated[int, typer.Option(help="How many there are.", rich_help_panel=TALK)] = 3,
    turns: Annotated[int, typer.Option(help="Of each.", rich_help_panel=TALK)] = 20,
    first_tokens: Annotated[int, typer.Option(help="The first turn's prompt.", rich_help_panel=TALK)] = 512,
    user_tokens: Annotated[int, typer.Option(help="What each later turn adds.", rich_help_panel=TALK)] = 64,
    answer_tokens: Annotated[int, typer.Option(help="Of each answer.", rich_help_panel=TALK)] = 128,
    think_s: Annotated[float, typer.Option(help="From an answer to the next turn.", rich_help_panel=TALK)] = 0.0,
    room: Annotated[float, typer.Option(help="The KV pool, in whole conversations.", rich_help_panel=TALK)] = 1.5,
    trunk_tokens: Annotated[int, typer.Option(help="What all agents begin with.", rich_help_panel=AGENTS)] = 2048,
    forks: Annotated[int, typer.Option(help="Agents at the start.", rich_help_panel=AGENTS)] = 8,
    sub_forks: Annotated[int, typer.Option(help="What each becomes half-way.", rich_help_panel=AGENTS)] = 2,
    agent_turns: Annotated[int, typer.Option(help="From the trunk to the end.", rich_help_panel=AGENTS)] = 6,
    tool_tokens: Annotated[int, typer.Option(help="A tool's result, each turn.", rich_help_panel=AGENTS)] = 192,
    tool_s: Annotated[float, typer.Option(help="A tool's time.", rich_help_panel=AGENTS)] = 0.5,
    agents_pool: Annotated[
        float, typer.Option(help="The KV pool, in % of the distinct pages of all prompts.", rich_help_panel=AGENTS)
    ] = 50.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help=f"Mooncake's format. Default: {TRACE_FILE} in $PHLOEM_DATA.", dir_okay=False, rich_help_panel=TRACE
        ),
    ] = None,
    requests: Annotated[int, typer.Option(help="The first so many of it.", rich_help_panel=TRACE)] = 6000,
    pool: Annotated[
        list[float] | None,
        typer.Option(
            help="KV pool in % of the distinct pages of all prompts; may be repeated. Default: 10 25 50 100.",
            rich_help_panel=TRACE,
        ),
    ] = None,
    visible: Annotated[
        list[int] | None,
        typer.Option(
            help="eviction: requests that always wait; may be repeated. Default: 16 64 256 1024.", rich_help_panel=TRACE
        ),
    ] = None,
    speedup: Annotated[float, typer.Option(help="trace: times are divided by this.", rich_help_panel=TRACE)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="All workloads in small sizes, whatever the options say of sizes: a few seconds."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Compare queue policies and evictions: the scheduler's own core on simulated time, with a device that only costs time.

    The default costs are about those of SmolLM2-135M on two CPU cores. Exit code 0, 1 if it could not be done, 2 for wrong options.
    """
    with parts():
        from .conversations import Fork, Talk
        from .cost import Cost
        from .plan import PolicyPlan
    try:
        plan = PolicyPlan(
            workloads=tuple(workload or UNTRACED),
            policies=tuple(policy or POLICIES),
            evictions=tuple(eviction or ("lru",)),
            cost=Cost(base_ms, prompt_ms, row_ms, attention_ms),
            chunk_ms=chunk_ms,
            max_running=max_running,
            page_size=page_size,
            ageing_s=ageing,
            ageing_sweep=tuple(ageing_sweep or (0, 2, 5, 10, 20, 30)),
            talk=Talk(conversations, turns, first_tokens, user_tokens, answer_tokens, think_s),
            room=room,
            fork=Fork(trunk_tokens, forks, sub_forks, agent_turns, tool_tokens=tool_tokens, tool_s=tool_s),
            agents_pool=agents_pool / 100,
            trace=trace or _known_trace(),
            requests=requests,
            pools=tuple(share / 100 for share in pool or (10, 25, 50, 100)),
            visible=tuple(visible or (16, 64, 256, 1024)),
            speedup=speedup,
            seed=seed,
        )
    except ValueError as error:
        fail(error, 2)
    _simulate(plan.quick() if quick else plan, output, plot, quiet)


def _simulate(plan: PolicyPlan, output: Path | None, picture: Path | None, quiet: bool) -> None:
    check_files(output, picture, code=1)
    with parts():
        from phloem.bench.traces import TraceError

        from .plan import BadPlan
        from .report import as_json, tables
        from .run import run
        from .simulate import Refused
    try:
        with _bar(quiet) as bar:
            outcome = run(plan, lambda total: _drawn_by(bar, total))
        if output is not None:
            output.write_bytes(as_json(plan, outcome))
        if picture is not None:
            from .plot import plot

            plot(plan, outcome, picture)
    except BadPlan as error:
        fail(error, 2)
    except (TraceError, Refused, OSError) as error:
        fail(error)
    console = Console()
    for table in tables(plan, outcome):
        console.print(table)


def _bar(quiet: bool) -> Progress:
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True)


def _drawn_by(bar: Progress, total: int) -> Callable[[int, str], None]:
    task = bar.add_task("", total=total)
    return lambda completed, what: bar.update(task, completed=completed, description=what)


def _known_trace() -> Path | None:
    """The trace in $PHLOEM_DATA, if it is there."""
    folder = os.environ.get("PHLOEM_DATA")
    path = Path(folder, TRACE_FILE) if folder else None
    return path if path is not None and path.is_file() else None
