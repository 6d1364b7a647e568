"""The wheel as a user gets it: built, installed outside the checkout, imported, and asked for help."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = [
    "phloem",
    "phloem.testing",
    "phloem.up.app",
    "phloem_bus",
    "phloem_model",
    "phloem_proto.messages",
    "phloem_proto.v1",
    "phloem_tokenizer.service",
    "phloem_scheduler.service",
    "phloem_gpu_worker.service",
    "phloem_grammar.service",
    "phloem_gateway.service",
]
VERBS = ["serve", "up", "pull", "version", "bench"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's files; what they need comes from the tests' own environment."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=100)
    return target


def outside(installed: Path, cwd: Path, *command: str) -> str:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PHLOEM_")}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environ, "PYTHONPATH": str(installed), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    expected = {"phloem", *(name.partition(".")[0] for name in PACKAGES)}
    assert tops == {*expected, "phloem-0.1.0.dist-info"}
    assert all(f"{package}/py.typed" in names for package in expected)
    assert "phloem-0.1.0.dist-info/licenses/LICENSE" in names


def test_every_package_is_imported_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    files = outside(installed, tmp_path, sys.executable, "-c", code, *PACKAGES).split()
    assert len(files) == len(PACKAGES)
    assert all(Path(file).is_relative_to(installed) for file in files)


def test_its_command_says_its_version_and_helps(installed: Path, tmp_path: Path) -> None:
    phloem = str(installed / "bin" / "phloem")
    assert outside(installed, tmp_path, phloem, "--version") == "phloem 0.1.0\n"
    helped = outside(installed, tmp_path, phloem, "--help")
    assert all(verb in helped for verb in VERBS)
    served = outside(installed, tmp_path, phloem, "serve", "--help")
    assert all(
        flag in served for flag in ("--model", "--http-port", "--grpc-port", "--dtype", "--page-size", "--kv-tokens")
    )
    assert "PHLOEM_CHUNK_TOKENS" in served
