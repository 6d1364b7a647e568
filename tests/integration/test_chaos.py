"""`phloem chaos` once, with few streams: each fault is done to real processes, and what is aimed at holds."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from phloem.chaos.faults import FAULTS

from .harness import BIN, eventually

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(300)]

SHORT = [fault.name for fault in FAULTS if not fault.long and fault.name != "rolling-restart"]
LONG = ["flood", "rolling-restart"]
OURS = "TEST_CHAOS_FOLDER"
"""Variable by which processes of a run are found."""
NOTICED = [
    "worker-killed", "only-worker-killed", "scheduler-killed", "grammar-killed", "tokenizer-killed", "broker-stopped",
    "broker-restarted", "worker-frozen",
]  # fmt: skip


@dataclass
class Done:
    """A run of `phloem chaos` that is over."""

    code: int
    output: str
    document: Any

    def row(self, name: str) -> Any:
        (found,) = [row for row in self.document["rows"] if row["name"] == name]
        return found

    def check(self, name: str) -> None:
        """Every aim of a fault holds."""
        missed = [aim for aim in self.row(name)["aims"] if not aim["held"]]
        assert not missed, self.output


def run(folder: Path, faults: list[str], *flags: str) -> Done:
    """The command with few streams; it has to clean up behind itself."""
    only = [word for name in faults for word in ("--only", name)]
    done = subprocess.run(
        [str(BIN / "phloem"), "chaos", "--streams", "8", "--json", str(folder / "chaos.json"), *only, *flags],
        capture_output=True,
        text=True,
        timeout=280,
        env=_environment(folder),
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert (folder / "chaos.json").is_file(), done.stderr
    assert _left_of(folder) == []
    return Done(done.returncode, done.stdout + done.stderr, json.loads((folder / "chaos.json").read_text()))


def _environment(folder: Path) -> dict[str, str]:
    """What the command passes on to all that it starts, so that it can be told from other deployments."""
    return {**os.environ, "PHLOEM_THREADS": "1", OURS: str(folder)}


def _left_of(folder: Path) -> list[list[str]]:
    """Command lines of the processes that still run."""
    return [process.cmdline() for process in psutil.process_iter() if _variable(process, OURS) == str(folder)]


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Everything that takes seconds, on one deployment."""
    return run(tmp_path_factory.mktemp("chaos"), SHORT)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What takes longer, with a small flood."""
    return run(tmp_path_factory.mktemp("chaos"), LONG, "--flood", "1000")


def test_streams_without_a_fault_are_what_they_were_the_first_time(short: Done) -> None:
    short.check("undisturbed")
    figures = short.row("undisturbed")["figures"]
    assert (figures["requests"], figures["ended"], figures["differs"]) == (8, 8, 0)


@pytest.mark.parametrize("name", SHORT)
def test_what_is_aimed_at_holds_under(short: Done, name: str) -> None:
    short.check(name)


@pytest.mark.parametrize("name", NOTICED)
def test_somebody_says_that_a_peer_is_gone(short: Done, name: str) -> None:
    row = short.row(name)
    assert row["said"]
    assert 0 < row["figures"]["noticed_s"] < 6


def test_the_exit_code_says_whether_all_holds(short: Done) -> None:
    assert short.code == (0 if short.document["held"] else 1)
    assert short.document["held"] == all(row["held"] for row in short.document["rows"])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_what_is_aimed_at_holds_in_the_long_run_under(long: Done, name: str) -> None:
    long.check(name)


def test_what_was_done_is_shown_when_somebody_stops_it(tmp_path: Path) -> None:
    command = [str(BIN / "phloem"), "chaos", "--streams", "2", "--tokens", "50", "--json", str(tmp_path / "chaos.json")]
    output, environment = tmp_path / "output", _environment(tmp_path)
    with (
        output.open("wb") as sink,
        subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        try:
            eventually(lambda: "worker-killed ..." in output.read_text() or output.read_text(), 120, "never began")
        finally:
            process.terminate()
        assert process.wait(60) == 130, output.read_text()
    document = json.loads((tmp_path / "chaos.json").read_text())
    assert document["interrupted"]
    assert document["rows"][0]["name"] == "undisturbed"
    assert _left_of(tmp_path) == []


def test_a_fault_that_does_not_exist_is_one_line_and_exit_2() -> None:
    done = subprocess.run(
        [str(BIN / "phloem"), "chaos", "--only", "fire"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("phloem chaos: --only: one of worker-killed, ")
    assert done.stderr.count("\n") == 1
