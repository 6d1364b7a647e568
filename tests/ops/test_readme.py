"""The README says what is so: paths, settings and commands in it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from phloem.bench.app import app as bench

from .test_compose_file import OURS, settings_of

PAGES = ["README.md", "CONTRIBUTING.md", "AGENTS.md", "ARCHITECTURE.md"]


@pytest.mark.parametrize("page", PAGES)
def test_linked_and_named_files_exist(root: Path, page: str) -> None:
    text = (root / page).read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"`((?:scripts|examples|tests|proto|src|services|deploy)/[\w./]+)", text)
    missing = [path for path in [*links, *named] if not (root / path).exists()]
    assert missing == []


def test_the_file_tree_is_that_of_the_repository(root: Path) -> None:
    (tree,) = re.findall(r"## What is where\n\n```\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    above: dict[int, Path] = {0: root}  # indentation -> the folder its lines are in
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        name = line.split()[0]
        if "<" in name:  # a placeholder
            continue
        assert (above[indent] / name).exists(), line
        above[indent + 2] = above[indent] / name
    assert len(tree.splitlines()) > 20


@pytest.mark.parametrize("page", ["README.md", "scripts/bench"])
def test_every_command_of_the_bench_is_named(root: Path, page: str) -> None:
    named = set(re.findall(r"scripts/bench (\w+) ", (root / page).read_text()))
    assert named == set(typer.main.get_command(bench).commands)  # type: ignore[attr-defined]


def test_settings_in_the_table_exist_with_the_default_shown(root: Path) -> None:
    known = {key: value for name in OURS for key, value in settings_of("phloem_" + name.replace("-", "_")).items()}
    rows = re.findall(r"^\| (`PHLOEM_[^|]+) \| ([^|]+) \|", (root / "README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 12
    for names, defaults in rows:
        settings = re.findall(r"`(PHLOEM_\w+)`", names)
        shown = [default.strip(" `") for default in defaults.split(",")]
        for index, setting in enumerate(settings):
            if setting == "PHLOEM_CACHE":
                continue  # of the cache itself, not of a service
            assert setting in known
            default = shown[min(index, len(shown) - 1)]
            if known[setting] not in (None, ""):
                assert re.match(rf"{re.escape(str(known[setting]).removesuffix('.0'))}\b", default), (setting, default)
