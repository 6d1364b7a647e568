"""Every example against a real `phloem serve --model tiny`, and the bench against the same server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.harness import Running, phloem
from typer.testing import CliRunner

from phloem.bench import app

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
LAST_LINES = {
    "openai_chat.py": r"\d+ tokens in, \d+ out",
    "many_at_once.py": r"16 answers, \d+ tokens in .* tokens/s",
    "cached_prefix.py": r"second: \d+ prompt tokens, [1-9]\d* of them cached, .* s",
    "json_schema.py": r"follows the schema; ended by stop",
    "regex.py": r"matches .*",
    "native_generate.py": r"    \d+ tokens in \(\d+ cached\), 16 out, ended by length|.* ended by stop",
    "grpc_client.py": r"\d+ tokens in, \d+ out, ended by (length|stop)",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with phloem("serve", "--model", "tiny", env={"OMP_NUM_THREADS": "1"}) as running:
        yield running


def test_every_example_is_run_and_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LAST_LINES)
    listed = re.findall(r"^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(LAST_LINES)


@pytest.mark.parametrize("name", LAST_LINES)
def test_example(server: Running, name: str) -> None:
    env = {**os.environ, "PHLOEM_URL": server.url, "PHLOEM_GRPC": server.grpc, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(LAST_LINES[name], done.stdout.splitlines()[-1]), done.stdout
    assert not done.stderr


def bench(server: Running, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """One round of `phloem bench serve`; every request must have gone well."""
    path = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["serve", "--url", server.url, "--quiet", "--output", str(path), *arguments])
    assert result.exit_code == 0, result.output
    turn: dict[str, Any] = json.loads(path.read_text())["turns"][0]
    return turn


def test_bench_shared_prefix_finds_the_cache(server: Running, tmp_path: Path) -> None:
    lengths = ("--prefix-len", "512", "--question-len", "64", "--output-len", "8", "--concurrency", "4")
    turn = bench(
        server,
        tmp_path,
        "--workload",
        "shared-prefix",
        "--groups",
        "2",
        "--prompts-per-group",
        "4",
        "--flush-cache",
        *lengths,
    )
    assert turn["flushed"] is True
    assert turn["output_tokens"] == 8 * 8
    assert 0.4 < turn["cached_share"] < 0.9
    assert turn["ttft_ms"]["count"] == 8


def test_bench_json_answers_all_follow_their_schema(server: Running, tmp_path: Path) -> None:
    turn = bench(server, tmp_path, "--workload", "json", "--num-prompts", "12", "--output-len", "600")
    assert turn["succeeded"] == 12


def test_bench_open_loop_completions(server: Running, tmp_path: Path) -> None:
    turn = bench(
        server,
        tmp_path,
        "--api",
        "completions",
        "--num-prompts",
        "10",
        "--request-rate",
        "50",
        "--input-len",
        "100",
        "--output-len",
        "4",
    )
    assert turn["input_tokens"] == pytest.approx(1000, rel=0.05)
    assert turn["counted"] is True
