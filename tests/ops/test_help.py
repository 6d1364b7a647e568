"""What `--help` shows is what was written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from .test_compose_file import OURS

ROOTS = {name: f"phloem_{name.replace('-', '_')}.__main__" for name in OURS} | {"phloem": "phloem.cli"}
VERBS = ("serve", "up", "pull", "tree", "version")


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command and the verbs below it."""
    yield name, command
    below = getattr(command, "commands", {})
    yield from ((f"{name} {verb}", below[verb]) for verb in VERBS if verb in below)


@pytest.mark.parametrize("root", ROOTS)
def test_no_help_holds_brackets_which_would_vanish_as_markup(root: str) -> None:
    app = typer.main.get_command(importlib.import_module(ROOTS[root]).app)
    found = [
        f"{name} {param.name}: {text}"
        for name, command in commands(root, app)
        for param in command.params
        if "[" in (text := str(getattr(param, "help", None) or ""))
    ]
    assert found == []
