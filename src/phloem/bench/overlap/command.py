"""The command `phloem bench overlap`. What it does is imported when it is used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import check_files, fail, one_of, parts, wide_console

if TYPE_CHECKING:
    from .outcome import OverlapOutcome
    from .plan import OverlapPlan
    from .run import Turn

DEVICES = ("sleep", "burn")
"""As in `plan`, named here so that ``--help`` needs no import of it; a test keeps them equal."""
PARTS = ("idle", "ceiling")
CEILING = "Ceiling"


def overlap(
    device: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{' | '.join(DEVICES)}; may be repeated. Default: both. What the stand-in does in a step: sleep, as the host of a GPU, or "
            "compute on all cores, as the CPU."
        ),
    ] = None,
    rows: Annotated[
        list[int] | None,
        typer.Option(
            help="Sequences at once; may be repeated. Default: 64 and 256 with steps of 8 ms, 64 with 2 ms; 64 if there is --step-ms."
        ),
    ] = None,
    step_ms: Annotated[
        list[float] | None, typer.Option(help="Time of a step; may be repeated. Default: as --rows says; else 8.")
    ] = None,
    depth: Annotated[
        list[int] | None, typer.Option(min=1, max=3, help="Plans in flight; may be repeated. Default: 2 and 1.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=10, max=8000, help="Steps to count per run. Default: some 4 seconds of them.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs per device, size and depth, in turn.")] = 1,
    only: Annotated[
        str | None,
        typer.Option(help=f"{' | '.join(PARTS)}: measure nothing but how idle the device is, or the ceiling."),
    ] = None,
    streams: Annotated[int, typer.Option(help="Streams at once.", rich_help_panel=CEILING)] = 64,
    stream_tokens: Annotated[int, typer.Option(help="Tokens of each.", rich_help_panel=CEILING)] = 1800,
    model: Annotated[
        str,
        typer.Option(help="Model whose tokenizer makes text of the tokens.", rich_help_panel=CEILING),
    ] = "smollm2",
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Run it once more under cProfile, to see where it goes: half a minute.",
            rich_help_panel=CEILING,
        ),
    ] = False,
    nats_url: Annotated[
        str | None,
        typer.Option(
            envvar="PHLOEM_NATS_URL", help="A running broker. Default: one of our own; the ceiling always has one."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
) -> None:
    """Measure how long a device waits for its next plan, and how many tokens a second all but the device can carry.

    The device is a stand-in; all else is real services in processes of their own over NATS, with the priorities that `phloem up` gives them.
    Takes some three minutes, in which nothing else should run. Exit code 0 whatever the figures are, and the last lines say which aims hold;
    1 if it could not be measured, 2 for wrong options.
    """
    for one in device or ():
        one_of("--device", one, DEVICES)
    if only is not None:
        one_of("--only", only, PARTS)
    check_files(output, plot, code=2)
    if profile and only == "idle":
        fail("--profile is of the ceiling, which --only idle leaves out", 2)
    if profile and sys.version_info >= (3, 12):
        fail("--profile needs Python 3.11: later ones can't profile several threads", 2)
    with parts():
        from .plan import DEPTHS, CeilingPlan, OverlapPlan, cases
    try:
        plan = OverlapPlan(
            cases=tuple(cases(tuple(device or ()), tuple(rows or ()), tuple(step_ms or ()), steps))
            if only != "ceiling"
            else (),
            depths=tuple(dict.fromkeys(depth or DEPTHS)),
            rounds=rounds,
            nats_url=nats_url,
            ceiling=CeilingPlan(streams, stream_tokens, model) if only != "idle" else None,
            profile=profile,
        )
    except ValueError as error:
        fail(error, 2)
    _measure(plan, output, plot)


def _measure(plan: OverlapPlan, output: Path | None, picture: Path | None) -> None:
    with parts():
        import anyio

        from phloem_bus.errors import BusError, ConfigError
        from phloem_model import ModelError

        from ..hardware.neighbours import Neighbours
        from .outcome import overlap as run
        from .processes import ProcessFailed
        from .report import line
        from .sink import RequestsFailed
    console = wide_console()

    def say(what: Turn | str) -> None:
        console.print(what if isinstance(what, str) else line(what), highlight=False, markup=False)

    neighbours = Neighbours(own_s=lambda: sum(os.times()[:4]))  # with all processes that have ended
    try:
        outcome = anyio.run(run, plan, say, backend_options={"use_uvloop": True})
        _report(plan, outcome, neighbours.cores(), output, picture)
    except (ProcessFailed, RequestsFailed, ModelError, BusError, ConfigError, OSError, ValueError) as error:
        fail(str(error) or "a run did not end in time")


def _report(
    plan: OverlapPlan, outcome: OverlapOutcome, others: float | None, output: Path | None, picture: Path | None
) -> None:
    from ..hardware.neighbours import QUIET
    from .report import as_json, notes, tables, verdicts

    console = wide_console()
    for table in tables(plan, outcome):
        console.print(table)
    for text in (*notes(outcome), *verdicts(outcome)):
        console.print(text, highlight=False, markup=False)
    if others is not None and others > QUIET:
        console.print(f"NOT quiet: others used {others:.1f} cores meanwhile", highlight=False, markup=False)
    if output is not None:
        output.write_bytes(as_json(plan, outcome, others))
    if picture is not None:
        from .plot import plot

        plot(outcome, picture)
