"""A service as a process: signals, exit codes, readiness, metrics, and errors in one line."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phloem_bus.garbage import settling
from tests.ports import free_port

from .server import NatsServer

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*flags: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.bus.dummy_service", *flags]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PHLOEM_")}
    paths = [str(ROOT), str(ROOT / "src"), str(ROOT / "proto")]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=clean | {"PYTHONPATH": os.pathsep.join(paths)} | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


def finish(process: subprocess.Popen[str], seconds: float = 15) -> tuple[int, str]:
    """Exit code and standard error."""
    _, errors = process.communicate(timeout=seconds)
    return process.returncode, errors


def test_a_ready_service_shows_it_and_drains_at_sigterm(nats_server: NatsServer, tmp_path: Path) -> None:
    ready, port = tmp_path / "ready", free_port()
    flags = [
        "--nats-url",
        nats_server.url,
        "--ready-file",
        str(ready),
        "--metrics-port",
        str(port),
        "--log-format",
        "json",
    ]
    with started(*flags) as process:
        wait_up(process)
        assert probe(ready) == 0
        first = ready.stat().st_mtime
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            metrics = reply.read().decode()
        assert 'phloem_bus_connected{role="grammar"} 1.0' in metrics
        assert "process_resident_memory_bytes" in metrics
        assert float(metrics.split("\nphloem_bus_tasks ")[1].split()[0]) > 1
        deadline = time.monotonic() + 5
        while ready.stat().st_mtime == first and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ready.stat().st_mtime > first  # touched again and again
        process.send_signal(signal.SIGTERM)
        code, errors = finish(process)
        assert code == 0
        assert not ready.exists()
        lines = [json.loads(line) for line in errors.splitlines()]
        assert any("draining" in line["message"] and line["service"] == "grammar" for line in lines)
    assert probe(ready) == 1


def probe(ready: Path) -> int:
    with started("probe", "--ready-file", str(ready)) as process:
        return finish(process)[0]


def test_a_stale_ready_file_is_not_ready(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.write_text("1\n")
    assert probe(ready) == 0
    os.utime(ready, (time.time() - 6, time.time() - 6))
    assert probe(ready) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_for_the_broker_is_one_line_and_can_be_ended(number: signal.Signals) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with started("--nats-url", url) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"waiting for NATS at {url}" in line
        time.sleep(0.3)  # some attempts later
        process.send_signal(number)
        code, errors = finish(process)
        assert code == 0
        assert "waiting" not in errors


def test_a_second_signal_stops_at_once(nats_server: NatsServer) -> None:
    for mode in ("slow", "threads"):
        with started("--nats-url", nats_server.url, "--mode", mode) as process:
            wait_up(process)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert "draining" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert finish(process, 8)[0] == 130


def test_a_drain_that_takes_too_long_is_cut_and_failed(nats_server: NatsServer) -> None:
    with started("--nats-url", nats_server.url, "--mode", "slow", "--drain-seconds", "0") as process:
        wait_up(process)
        process.send_signal(signal.SIGTERM)
        code, errors = finish(process)
        assert code == 1
        assert "not drained in time" in errors


def test_a_service_that_fails_or_ends_by_itself_exits_with_one(nats_server: NatsServer) -> None:
    with started("--nats-url", nats_server.url, "--mode", "fails") as process:
        code, errors = finish(process)
        assert code == 1
        assert "broken on purpose" in errors
    with started("--nats-url", nats_server.url, "--mode", "ends") as process:
        code, errors = finish(process)
        assert code == 1
        assert "ended without being told" in errors


def test_settings_that_cannot_be_used_are_one_line_and_exit_two(nats_server: NatsServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases: list[tuple[list[str], dict[str, str], str]] = [
            (
                ["--nats-url", "http://x"],
                {},
                "error: --nats-url (PHLOEM_NATS_URL): not a URL like nats://host:4222: 'http://x'",
            ),
            (
                [],
                {"PHLOEM_LOG_FORMAT": "xml"},
                "error: --log-format (PHLOEM_LOG_FORMAT): one of console, json, not 'xml'",
            ),
            (
                ["--nats-password-file", str(empty)],
                {},
                "error: --nats-password-file (PHLOEM_NATS_PASSWORD_FILE): the file is empty",
            ),
            (
                ["--metrics-port", "9", "--metrics-host", "198.51.100.7"],
                {},
                "error: --metrics-host (PHLOEM_METRICS_HOST): not an address of this machine: '198.51.100.7'",
            ),
            (["--metrics-port", str(port)], {}, f"error: --metrics-port (PHLOEM_METRICS_PORT): port {port} is in use"),
            (["--mode", "port"], {}, "error: --http-port (PHLOEM_HTTP_PORT): port 8000 is in use"),
            (["--mode", "setting"], {}, "error: --compile-limit (PHLOEM_COMPILE_LIMIT): must be positive"),
            (["probe"], {}, "error: --ready-file (PHLOEM_READY_FILE): names the file to look at; it is not set"),
        ]
        for flags, env, line in cases:
            if "--nats-url" not in flags and flags[:1] != ["probe"]:
                flags = ["--nats-url", nats_server.url, *flags]
            with started(*flags, env=env) as process:
                code, errors = finish(process)
                assert (code, errors.strip()) == (2, line)


def test_flags_beat_variables_and_version_is_shown() -> None:
    with started("--log-format", "console", "--nats-url", "bad", env={"PHLOEM_LOG_FORMAT": "xml"}) as process:
        assert finish(process)[1].startswith("error: --nats-url")
    with started("--version") as process:
        output, _ = process.communicate(timeout=15)
        assert process.returncode == 0
        assert output.startswith("phloem 0.")


def test_what_the_start_made_is_out_of_garbage_collection_once_it_is_ready() -> None:
    told: list[bool] = []
    before, kept = gc.get_freeze_count(), [object(), [1]]
    try:
        tell = settling(told.append)
        tell(False)
        assert gc.get_freeze_count() == before
        tell(True)
        frozen = gc.get_freeze_count()
        assert frozen > before
        later: list[list[int]] = [[] for _ in range(100)]
        tell(False)
        tell(True)
        assert gc.get_freeze_count() <= frozen  # nothing that came later
        assert (told, len(later), len(kept)) == ([False, True, False, True], 100, 2)
    finally:
        gc.unfreeze()
