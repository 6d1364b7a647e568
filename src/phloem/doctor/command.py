"""The `doctor` verb of the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    file: Annotated[Path, typer.Option("--file", "-f", help="The compose file of phloem up.")] = Path("compose.yaml"),
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything to this file.")] = None,
) -> None:
    """Say what this machine has, what Phloem will choose from it, and what to do about what is missing.

    Settings are looked for where services look: in PHLOEM_* variables. Nothing is fetched or compiled. Exit code 0 if a model can be
    served here, 1 if something makes that impossible, 2 for wrong options.
    """
    if json is not None and not json.parent.is_dir():
        print(f"phloem doctor: --json: the folder {json.parent} does not exist", file=sys.stderr)
        raise typer.Exit(2)
    from rich.console import Console

    from .examine import examine
    from .finding import can_serve
    from .report import as_json, show

    findings = examine(os.environ, file)
    show(findings, Console())
    if json is not None:
        try:
            json.write_bytes(as_json(findings))
        except OSError as error:
            print(f"phloem doctor: --json: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
    raise typer.Exit(0 if can_serve(findings) else 1)
