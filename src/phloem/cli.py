"""The `phloem` command: one Typer app, one function per verb, no work at import."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from phloem.chaos.command import chaos
from phloem.doctor.command import doctor
from phloem.tree.command import tree
from phloem_bus.extras import advice

app = typer.Typer(
    name="phloem",
    help="Serve language models as five async services over one radix tree of KV-cache prefixes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def fail(verb: str, error: Exception, code: int = 2) -> NoReturn:
    """End with one line on standard error: 2 for what the person typed or set, 1 for what went wrong on the way."""
    print(f"phloem {verb}: {error}", file=sys.stderr)
    raise typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"phloem {installed_version('phloem')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `phloem` itself."""


@app.command()
def version() -> None:
    """Show the version."""
    _print_version(True)


@app.command()
def pull(
    model: Annotated[str, typer.Argument(help="A name such as smollm2, a path, or a hub id (owner/name).")] = "smollm2",
) -> None:
    """Fetch a model into the cache, check it, and prepare its tokenizer."""
    from phloem_model.errors import ModelError, ModelUnavailable
    from phloem_model.resolve import resolve

    try:
        files = resolve(model, progress=lambda line: print(line, file=sys.stderr, flush=True))
    except ModelError as error:
        fail("pull", error, 1 if isinstance(error, ModelUnavailable) else 2)
    print(f"{files.name}: {files.weights}")
    print(f"{files.name}: context of {files.context_length} tokens; sha256 of the weights {files.model_digest}")


@app.command()
def up(
    file: Annotated[Path, typer.Option("--file", "-f", help="The compose file.")] = Path("compose.yaml"),
    profile: Annotated[list[str] | None, typer.Option(help="Profile of the compose file; may be repeated.")] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="SERVICE=N", help="Run N instances of a service; may be repeated.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(envvar="PHLOEM_MODEL", help="Model: a name such as smollm2, a path, or a hub id.")
    ] = None,
    http_port: Annotated[int | None, typer.Option(envvar="PHLOEM_HTTP_PORT", help="Port of HTTP.")] = None,
    grpc_port: Annotated[int | None, typer.Option(envvar="PHLOEM_GRPC_PORT", help="Port of gRPC.")] = None,
    nats_url: Annotated[
        str | None, typer.Option(envvar="PHLOEM_NATS_URL", help="Use this nats-server instead of starting one.")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long a stop may take before it becomes a kill.")
    ] = 40,
) -> None:
    """Run a compose file's services as local processes, over a real nats-server, without Docker.

    Without --profile, COMPOSE_PROFILES (also from the .env beside the file) says which services run. Further settings are the PHLOEM_*
    variables that the file names.
    """
    try:
        from phloem.up.app import up as run
    except ModuleNotFoundError as error:
        fail("up", ModuleNotFoundError(advice(error, "all")))
    from phloem.up.errors import UpError

    flags = {"PHLOEM_MODEL": model, "PHLOEM_HTTP_PORT": http_port, "PHLOEM_GRPC_PORT": grpc_port}
    settings = {name: str(value) for name, value in flags.items() if value is not None}
    try:
        code = run(
            file,
            profiles=profile or [],
            scale=scale or [],
            settings=settings,
            nats_url=nats_url,
            drain_s=drain_seconds,
        )
    except UpError as error:
        fail("up", error)
    raise typer.Exit(code)


app.command()(chaos)
app.command()(doctor)
app.command()(tree)


def _unavailable(verb: str, purpose: str, error: ModuleNotFoundError) -> None:
    """Stand in for a verb whose packages are not installed, and say so when it is asked for."""
    needs = advice(error, "all")

    @app.command(name=verb, help=f"{purpose} ({needs})", context_settings={"ignore_unknown_options": True})
    def unavailable(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        fail(verb, ModuleNotFoundError(needs))


def _mount_optional() -> None:
    """Mount the verbs that need more than the base installation."""
    try:
        from phloem.serve.command import serve
    except ModuleNotFoundError as error:
        _unavailable("serve", "Serve a model", error)
    else:
        app.command(context_settings={"allow_extra_args": True})(serve)  # which it refuses, with advice
    try:
        from phloem.bench.app import app as bench
    except ModuleNotFoundError as error:
        _unavailable("bench", "Measure a server", error)
    else:
        app.add_typer(bench, name="bench")


_mount_optional()
