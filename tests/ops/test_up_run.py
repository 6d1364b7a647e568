"""`phloem up` with real processes: small Python programs in the place of services."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 30.0  # of any single wait; a loaded machine starts a Python in seconds

# A service that says its pid, drains on SIGTERM after a moment, and leaves a child behind unless somebody sweeps.
SERVICE = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pid", os.getpid(), "child", child.pid, "nice", os.nice(0), *sys.argv[1:], flush=True)
def drain(*_):
    print("drained", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, drain)
open(os.environ["PHLOEM_READY_FILE"], "w").close()
while True:
    time.sleep(600)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("pid", os.getpid(), flush=True)
while True:
    time.sleep(600)
"""
DYING = "import os, sys; print('pid', os.getpid()); print('what went wrong'); sys.exit(3)"


class Run:
    """A `phloem up` in the background, its output so far, and every pid it spoke of."""

    def __init__(self, folder: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        self._output = folder / "output"
        command = [sys.executable, "-m", "phloem", "up", "-f", str(folder / "compose.yaml"), *flags]
        with self._output.open("wb") as sink:
            self.process = subprocess.Popen(
                command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._output.read_text()

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"(?:pid|child) (\d+)", self.text)]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None or condition(), self.text
            time.sleep(0.02)

    def until_says(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.text.count(text) >= times)

    def ends(self) -> int:
        return self.process.wait(DEADLINE_S)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(compose: str, *flags: str, **environ: str) -> Run:
        (tmp_path / "service.py").write_text(SERVICE)
        (tmp_path / "stubborn.py").write_text(STUBBORN)
        (tmp_path / "dying.py").write_text(DYING)
        (tmp_path / "compose.yaml").write_text(compose.replace("@", str(tmp_path)))
        runs.append(Run(tmp_path, *flags, environ=environ))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(DEADLINE_S)


TWO = """
services:
  back:
    environment: {PHLOEM_READY_FILE: /tmp/ready}
    x-phloem: {command: [python, @/service.py, back:7], nice: 3}
  front:
    environment: {PHLOEM_READY_FILE: /tmp/ready}
    depends_on: [back]
    x-phloem: {command: [python, @/service.py]}
"""


def test_it_prefixes_lines_says_ready_and_drains_in_order_on_sigterm(start: Callable[..., Run]) -> None:
    run = start(TWO, "--scale", "back=2")
    run.until_says("phloem  | ready")
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 0
    drained = re.findall(r"^(\S+) +\| drained$", run.text, re.MULTILINE)
    assert drained[0] == "front-1"
    assert sorted(drained[1:]) == ["back-1", "back-2"]
    assert re.search(r"^back-1  \| pid \d+ child \d+ nice 3 ", run.text, re.MULTILINE)
    assert len(run.pids) == 6
    assert not any(alive(pid) for pid in run.pids)


def test_ctrl_c_drains(start: Callable[..., Run]) -> None:
    run = start(TWO)
    run.until_says("phloem  | ready")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 0
    assert run.text.count("| drained") == 2


def test_a_second_ctrl_c_kills(start: Callable[..., Run]) -> None:
    run = start("services:\n  deaf:\n    x-phloem: {command: [python, @/stubborn.py]}\n")
    run.until_says("pid ")
    run.process.send_signal(signal.SIGINT)
    run.until_says("| no")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert not any(alive(pid) for pid in run.pids)


def test_what_does_not_drain_in_time_is_killed(start: Callable[..., Run]) -> None:
    run = start("services:\n  deaf:\n    x-phloem: {command: [python, @/stubborn.py]}\n", "--drain-seconds", "0.3")
    run.until_says("pid ")
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 0
    assert "deaf-1 is killed" in run.text
    assert not any(alive(pid) for pid in run.pids)


def test_what_is_killed_is_started_again(start: Callable[..., Run]) -> None:
    run = start(TWO)
    run.until_says("phloem  | ready")
    os.kill(run.pids[0], signal.SIGKILL)
    run.until_says("it will be started again")
    run.until_says("pid ", times=3)
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 0
    assert not any(alive(pid) for pid in run.pids)


def test_five_deaths_stop_everything_and_show_the_last_lines(start: Callable[..., Run]) -> None:
    run = start(TWO + "  sick:\n    x-phloem: {command: [python, @/dying.py]}\n")
    assert run.ends() == 1
    assert run.text.count("sick-1  | what went wrong") == 5
    head, _, tail = run.text.partition("the last lines of sick-1:")
    assert "giving up" in head
    assert "  what went wrong\n" in tail
    assert not any(alive(pid) for pid in run.pids)


def test_a_setting_that_cannot_be_used_stops_everything_with_its_line(start: Callable[..., Run]) -> None:
    run = start(
        TWO + "  picky:\n    x-phloem: {command: [python, -c, \"import sys; print('bad value'); sys.exit(2)\"]}\n"
    )
    assert run.ends() == 2
    assert run.text.count("bad value") == 2  # as it was said, and at the end
    assert not any(alive(pid) for pid in run.pids)


def test_a_one_shot_runs_first_and_its_failure_is_final(start: Callable[..., Run]) -> None:
    run = start(
        """
services:
  pull:
    x-phloem: {command: [python, @/dying.py]}
  late:
    depends_on: {pull: {condition: service_completed_successfully}}
    x-phloem: {command: [python, @/service.py]}
"""
    )
    assert run.ends() == 1
    assert run.text.count("what went wrong") == 2  # as it was said, and at the end
    assert "late-1 |" not in run.text


def test_children_die_with_a_supervisor_that_is_killed(start: Callable[..., Run]) -> None:
    run = start(TWO)
    run.until_says("phloem  | ready")
    run.process.kill()
    run.ends()
    services = [int(pid) for pid in re.findall(r"pid (\d+)", run.text)]
    run_until = time.monotonic() + DEADLINE_S
    while any(alive(pid) for pid in services):
        assert time.monotonic() < run_until
        time.sleep(0.02)
    for pid in run.pids:  # what a service itself started is its own to look after
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_published_port_in_use_is_one_line_before_anything_starts(start: Callable[..., Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = start(
            f"""
services:
  gateway:
    ports: ["${{PHLOEM_HTTP_PORT:-{port}}}:8000"]
    x-phloem:
      command: [python, @/service.py]
      environment: {{PHLOEM_HTTP_PORT: "${{PHLOEM_HTTP_PORT:-{port}}}"}}
"""
        )
        assert run.ends() == 2
    assert run.text.splitlines() == [
        f"phloem up: PHLOEM_HTTP_PORT: port {port} is in use; choose another with PHLOEM_HTTP_PORT=PORT"
    ]


def test_a_program_that_does_not_exist_is_one_line(start: Callable[..., Run]) -> None:
    run = start("services:\n  ghost:\n    x-phloem: {command: [no-such-program]}\n")
    assert run.ends() == 2
    assert run.text == "phloem up: no program 'no-such-program' on the PATH\n"
