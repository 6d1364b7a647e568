"""The `chaos` verb of the command line."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from phloem_bus.extras import advice

FAULT_NAMES = (
    "worker-killed", "only-worker-killed", "scheduler-killed", "grammar-killed", "tokenizer-killed", "broker-stopped",
    "broker-restarted", "worker-frozen", "log-disk-full", "clients-gone", "rolling-restart", "flood", "soak",
)  # fmt: skip
"""As `faults.FAULTS`, named here so that ``--help`` needs no import of it; a test keeps them equal."""
WIDE = 200
"""Columns where no terminal says how wide it is."""


def chaos(
    file: Annotated[Path, typer.Option("--file", "-f", help="The compose file.")] = Path("compose.yaml"),
    model: Annotated[str, typer.Option(help="Model: a name such as smollm2, a path, or a hub id.")] = "tiny",
    streams: Annotated[int, typer.Option(help="Streams at once; every other one is held to a JSON schema.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of each stream: it should live longer than the fault.")] = 400,
    only: Annotated[
        list[str] | None, typer.Option(metavar="FAULT", help=f"{', '.join(FAULT_NAMES)}; may be repeated.")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="The flood and the soak too, which take minutes.")] = False,
    flood: Annotated[int, typer.Option(help="Requests of the flood; the queue holds a fifth of it.")] = 10_000,
    soak_minutes: Annotated[
        float, typer.Option(help="How long the soak lasts; under 10, more growth is allowed.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of all requests.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything to this file.")] = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the logs of all processes in this folder.")
    ] = None,
) -> None:
    """Start a deployment of its own, break it on purpose, and show what clients notice.

    Runs the services of the compose file as `phloem up` does, with two workers, two schedulers and two tokenizers. Exit code 0 if every
    aim holds, 1 if one does not or the deployment can't be used, 2 for wrong options, 130 when interrupted (what was done is shown).
    """
    try:
        import anyio
        from rich.console import Console

        from phloem.up.errors import UpError

        from .errors import ChaosError
        from .faults import chosen
        from .report import as_json, misses, remarks, table
        from .run import chaos as run
        from .wishes import Wishes
    except ModuleNotFoundError as error:
        raise _end(ModuleNotFoundError(advice(error, "all")), 2) from None
    try:
        wishes = Wishes(file, model, streams, tokens, tuple(only or ()), long, flood, seed, soak_minutes)
        chosen(wishes.only, wishes.long)
        _check_places(json, logs)
    except (ValueError, OSError) as error:
        raise _end(error, 2) from None
    try:
        found = anyio.run(partial(run, wishes, logs, lambda name: print(f"{name} ...", file=sys.stderr, flush=True)))
    except UpError as error:
        raise _end(error, 2) from None
    except ChaosError as error:
        raise _end(error, 1) from None
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table(found))
    for line in (*remarks(found), *misses(found)):
        console.print(line, markup=False, highlight=False)
    if json is not None:
        json.write_bytes(as_json(found))
    if found.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if found.held else 1)


def _check_places(json: Path | None, logs: Path | None) -> None:
    """Look at folders before minutes are spent. Raises OSError."""
    if json is not None and not json.absolute().parent.is_dir():
        raise FileNotFoundError(f"--json: the folder {json.absolute().parent} does not exist")
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)


def _end(error: Exception, code: int) -> typer.Exit:
    """One line on standard error, and the exit to raise."""
    print(f"phloem chaos: {error}", file=sys.stderr)
    return typer.Exit(code)
