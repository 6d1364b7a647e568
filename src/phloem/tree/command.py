"""The `tree` verb of the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def tree(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    max_nodes: Annotated[int, typer.Option(min=1, max=2000, help="Most nodes to show.")] = 200,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the API key.", dir_okay=False)] = None,
) -> None:
    """Draw a server's prefix cache: who holds what, what is found, used, kept and waited for. Ctrl-C ends it.

    Exit code 0 with --once, 1 if the server does not show its cache, 2 for wrong options, 130 when interrupted.
    """
    from rich.console import Console

    from .errors import NotSeen, Unusable
    from .fetch import Source
    from .watch import WIDE, watch
    from .watch import once as print_once

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDE)
    try:
        source = Source(url, max_nodes=max_nodes, key=_key(api_key_file))
        if once:
            print_once(source.look, console)
            return
        if not console.is_terminal:
            raise Unusable("this is no terminal: give --once")
        watch(source.look, console, interval)
    except Unusable as error:
        _end(error, 2)
    except NotSeen as error:
        _end(error, 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _key(path: Path | None) -> str:
    """The first line of a key file that is not a comment, as gateways read it. Raises `Unusable`."""
    from .errors import Unusable

    if path is None:
        return ""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"--api-key-file: can't read {path}: {type(error).__name__}") from None
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not (key and key.isascii() and key.isprintable()):
        raise Unusable(f"--api-key-file: {path} holds no key")
    return key


def _end(error: Exception, code: int) -> NoReturn:
    print(f"phloem tree: {error}", file=sys.stderr)
    raise typer.Exit(code)
