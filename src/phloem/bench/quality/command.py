"""The command `phloem bench quality`. What it does is imported when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..options import check_files, fail, one_of, parts, wide_console

if TYPE_CHECKING:
    from .plan import QualityPlan
    from .run import QualityOutcome


def quality(
    model: Annotated[
        str, typer.Option(envvar="PHLOEM_MODEL", help="Model: a name such as smollm2, a path, or a hub id.")
    ] = "smollm2",
    quantize: Annotated[
        list[str] | None,
        typer.Option(help="int8, int4 or stored, beside none; may be repeated. Default: all that the model has."),
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of the text that are read together.")] = 512,
    windows: Annotated[int, typer.Option(help="How many of them; 0 = the whole text.")] = 0,
    prompts: Annotated[int, typer.Option(help="Prompts that are continued.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each.")] = 24,
    tokens: Annotated[int, typer.Option(help="Tokens that each is continued by.")] = 64,
    threads: Annotated[
        int, typer.Option(envvar="PHLOEM_THREADS", help="CPU threads; 0 = as many as a worker would take.")
    ] = 0,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure what quantised weights cost: perplexity on a fixed text, and agreement with the same model in float32.

    Exit code 0 whatever the figures are, and the last lines say which aims hold; 1 if it could not be measured, 2 for wrong options.
    """
    check_files(output, plot, code=2)
    with parts():
        from phloem_gpu_worker.config import QUANTISATIONS as KNOWN

        from .plan import QUANTISATIONS, QualityPlan
    for one in quantize or ():
        one_of("--quantize", one, KNOWN)
    try:
        plan = QualityPlan(
            model, tuple(quantize or QUANTISATIONS), window, windows, prompts, prompt_tokens, tokens, threads
        )
    except ValueError as error:
        fail(error, 2)
    outcome = _measured(plan, quiet)
    try:
        _report(plan, outcome, output, plot)
    except OSError as error:
        fail(error)


def _measured(plan: QualityPlan, quiet: bool) -> QualityOutcome:
    from phloem_bus.errors import ConfigError
    from phloem_gpu_worker.errors import WorkerError
    from phloem_model import ModelError

    from .run import NotMeasurable
    from .run import quality as run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("", total=None)
        try:
            return run(plan, lambda name, at, of: progress.update(task, description=name, completed=at, total=of))
        except (NotMeasurable, WorkerError, ModelError, ConfigError) as error:
            fail(error)


def _report(plan: QualityPlan, outcome: QualityOutcome, output: Path | None, picture: Path | None) -> None:
    from .report import as_json, table, verdicts

    console = wide_console()
    console.print(table(plan, outcome))
    for line in verdicts(outcome):
        console.print(line, highlight=False, markup=False)
    if output is not None:
        output.write_bytes(as_json(plan, outcome))
    if picture is not None:
        from .plot import plot

        plot(outcome, picture)
