"""What `--help` shows is what was written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from .test_compose_file import OURS

ROOTS = {name: f"phloem_{name.replace('-', '_')}.__main__" for name in OURS} | {"phloem": "phloem.cli"}


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command and all verbs below it."""
    yield name, command
    for verb, below in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {verb}", below)


def texts(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """What its help shows: its own text, and that of each option and argument."""
    yield name, str(command.help or "")
    yield from ((f"{name} {param.name}", str(getattr(param, "help", None) or "")) for param in command.params)


@pytest.mark.parametrize("root", ROOTS)
def test_no_help_holds_brackets_which_would_vanish_as_markup(root: str) -> None:
    app = typer.main.get_command(importlib.import_module(ROOTS[root]).app)
    shown = [text for name, command in commands(root, app) for text in texts(name, command)]
    assert [text for text in shown if "[" in text[1]] == []


def test_the_verbs_below_verbs_are_looked_at() -> None:
    app = typer.main.get_command(importlib.import_module(ROOTS["phloem"]).app)
    assert {"phloem serve", "phloem bench serve", "phloem bench policy"} <= dict(commands("phloem", app)).keys()
