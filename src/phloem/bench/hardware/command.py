"""The command `phloem bench hardware`. What it does is imported when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..options import check_files, fail, one_of, parts, wide_console

if TYPE_CHECKING:
    from .plan import HardwarePlan
    from .run import HardwareOutcome


def hardware(
    model: Annotated[
        str, typer.Option(envvar="PHLOEM_MODEL", help="Model: a name such as smollm2, a path, or a hub id.")
    ] = "smollm2",
    quantize: Annotated[
        list[str] | None,
        typer.Option(help="none, int8, int4 or stored; may be repeated. Default: the first three."),
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option(help="Rows of a decode step; may be repeated. Default: 1 4 16 64.")
    ] = None,
    prompt: Annotated[
        list[int] | None, typer.Option(help="Tokens of a prompt; may be repeated. Default: 64 128 256 512.")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens that a sequence has before it decodes.")] = 64,
    rounds: Annotated[int, typer.Option(help="Everything is measured once per round; told are medians.")] = 5,
    tries: Annotated[int, typer.Option(help="Repetitions within a round.")] = 3,
    buffer_mb: Annotated[
        int, typer.Option(help="MiB that are read for the bandwidth: far more than caches hold.")
    ] = 1024,
    square: Annotated[int, typer.Option(help="Size of the product that says the matrix rate.")] = 2048,
    threads: Annotated[
        int, typer.Option(envvar="PHLOEM_THREADS", help="CPU threads; 0 = as many as a worker would take.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the tokens.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure what memory and cores here can do at most, and how near to it the worker's kernels come; torch beside them.

    Takes two minutes, in which nothing else should run. Exit code 0 whatever the figures are, and the last lines say which aims hold; 1 if
    it could not be measured, 2 for wrong options.
    """
    check_files(output, plot, code=2)
    with parts():
        from phloem_gpu_worker.config import QUANTISATIONS as KNOWN

        from .plan import QUANTISATIONS, HardwarePlan
    for one in quantize or ():
        one_of("--quantize", one, KNOWN)
    try:
        plan = HardwarePlan(
            model=model,
            quantize=tuple(dict.fromkeys(quantize or QUANTISATIONS)),
            rows=tuple(dict.fromkeys(rows or (1, 4, 16, 64))),
            prompts=tuple(dict.fromkeys(prompt or (64, 128, 256, 512))),
            context=context,
            rounds=rounds,
            tries=tries,
            buffer_mb=buffer_mb,
            square=square,
            threads=threads,
            seed=seed,
        )
    except ValueError as error:
        fail(error, 2)
    try:
        _report(plan, _measured(plan, quiet), output, plot)
    except OSError as error:
        fail(error)


def _measured(plan: HardwarePlan, quiet: bool) -> HardwareOutcome:
    from phloem_bus.errors import ConfigError
    from phloem_gpu_worker.errors import WorkerError
    from phloem_gpu_worker.openmp import sleep_soon
    from phloem_model import ModelError

    sleep_soon()  # as a worker does, before torch is loaded
    from .run import NotMeasurable, turns
    from .run import hardware as run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between rounds alone: a thread that draws it would be in the way of what is timed.
    with Progress(*columns, console=Console(stderr=True), disable=quiet, auto_refresh=False) as progress:
        task = progress.add_task("", total=turns(plan))
        try:
            outcome = run(plan, lambda name: progress.update(task, description=name, advance=1, refresh=True))
        except (NotMeasurable, WorkerError, ModelError, ConfigError) as error:
            fail(error)
    return outcome


def _report(plan: HardwarePlan, outcome: HardwareOutcome, output: Path | None, picture: Path | None) -> None:
    from .report import as_json, disturbance, tables, verdicts

    console = wide_console()
    for table in tables(plan, outcome):
        console.print(table)
    for line in verdicts(outcome):
        console.print(line, highlight=False, markup=False)
    if told := disturbance(outcome):
        console.print(told, highlight=False, markup=False)
    if output is not None:
        output.write_bytes(as_json(plan, outcome))
    if picture is not None:
        from .plot import plot

        plot(outcome, picture)
