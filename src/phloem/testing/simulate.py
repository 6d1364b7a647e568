"""``python -m phloem.testing.simulate``: run seeds of the simulation, replay one, shrink what fails."""

from __future__ import annotations

import logging
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from phloem_bus import extras

with extras.extra("simulation"):
    from .simulation.scenario import Scenario, draw_scenario
    from .simulation.sweep import LONG_ENOUGH, Run, check, shrink, sweep

Seed = Annotated[int | None, typer.Option(help="Replay one seed, with its trace.", min=0)]
Seeds = Annotated[int, typer.Option(help="How many seeds to run.", min=1)]
First = Annotated[int, typer.Option(help="The first of them.", min=0)]
Faults = Annotated[
    str | None, typer.Option(help="With --seed: only the faults of these numbers, commas between; '' = none.")
]
Calls = Annotated[str | None, typer.Option(help="With --seed: only the calls of these numbers, commas between.")]
Trace = Annotated[bool, typer.Option(help="With --seed: print the trace.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]

console = Console(soft_wrap=True, highlight=False)


def main(
    seed: Seed = None,
    seeds: Seeds = 100,
    first: First = 0,
    faults: Faults = None,
    calls: Calls = None,
    trace: Trace = True,
    quiet: Quiet = False,
) -> None:
    """Run a whole Phloem under seeded faults, on a simulated clock.

    Exit code 0 if every run did what it should, 1 if one did not (it is shrunk, and the command that replays it is printed), 2 for wrong
    options.
    """
    logging.getLogger("phloem").setLevel(logging.WARNING)
    if seed is not None:
        code = replay(_chosen(draw_scenario(seed), faults, calls), trace)
    elif faults is not None or calls is not None:
        raise typer.BadParameter("goes with --seed", param_hint="--faults, --calls")
    else:
        code = run_many(first, seeds, quiet)
    raise typer.Exit(code)


def replay(scenario: Scenario, trace: bool) -> int:
    """One run, told in full."""
    run = check(scenario, keep_trace=True)
    if trace:
        for entry in run.result.entries:
            console.print(str(entry), markup=False)
    _tell(run)
    return 1 if run.failures else 0


def run_many(first: int, count: int, quiet: bool) -> int:
    """A sweep with a progress bar."""
    columns = (TextColumn("seed {task.fields[seed]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    with Progress(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task("", total=count, seed=first)
        done = sweep(range(first, first + count), on_run=lambda seed, _: progress.update(task, advance=1, seed=seed))
    took = time.monotonic() - began
    table = Table("seen", "times")
    for what, times in sorted(done.seen.items()):
        table.add_row(what, str(times))
    console.print(table)
    if done.failed is not None:
        scenario = done.failed.result.scenario
        console.print(f"seed {scenario.seed} failed; shrinking ...")
        smallest = shrink(scenario)
        _tell(check(smallest))
        return 1
    console.print(f"{done.runs} seeds in {took:.0f} s: every run did what it should.")
    if done.runs >= LONG_ENOUGH and done.never:
        console.print(f"never seen: {', '.join(done.never)}")
        return 1
    return 0


def _chosen(scenario: Scenario, faults: str | None, calls: str | None) -> Scenario:
    """The scenario with only those of its faults and calls that are named."""
    return scenario.without(
        faults=_left_out(faults, [fault.number for fault in scenario.faults], "--faults"),
        calls=_left_out(calls, [call.number for call in scenario.calls], "--calls"),
    )


def _left_out(text: str | None, numbers: list[int], option: str) -> set[int]:
    if text is None:
        return set()
    try:
        kept = {int(part) for part in text.split(",") if part.strip()}
    except ValueError:
        raise typer.BadParameter(f"not numbers with commas between: {text!r}", param_hint=option) from None
    if unknown := kept - set(numbers):
        raise typer.BadParameter(f"no such number: {min(unknown)}", param_hint=option)
    return set(numbers) - kept


def _tell(run: Run) -> None:
    """The scenario, what came of it, and how to see it again."""
    scenario = run.result.scenario
    console.print(str(scenario.machine), markup=False)
    for call in scenario.calls:
        outcome = run.result.outcomes[call.number]
        console.print(f"call {call.number} at {call.at:.2f} s: {call.body}", markup=False)
        ends = [answer.finish for _, answer in sorted(outcome.answers.items())]
        told = "left" if outcome.left else f"{ends}, tries: {outcome.tries}, longest gap {outcome.longest_gap_s:.2f} s"
        console.print(f"    {told}", markup=False)
    for fault in scenario.faults:
        console.print(f"fault {fault.number} at {fault.at:.2f} s: {fault}", markup=False)
    for failure in run.failures:
        console.print(f"FAILED: {failure}", markup=False, style="bold red")
    if run.failures:
        faults = ",".join(str(fault.number) for fault in scenario.faults)
        calls = ",".join(str(call.number) for call in scenario.calls)
        console.print(
            f"replay: python -m phloem.testing.simulate --seed {scenario.seed} --faults '{faults}' --calls '{calls}'",
            markup=False,
        )
    console.print(f"digest of the trace: {run.result.digest}")


if __name__ == "__main__":
    typer.run(main)
