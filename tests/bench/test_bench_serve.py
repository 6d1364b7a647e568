"""`phloem bench serve` as a user calls it, against the fake server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.app import WORKLOADS
from phloem.bench.measure import Outcome, Server, Turn
from phloem.bench.plan import Plan, Workload
from phloem.bench.plot import plot
from phloem.bench.record import Record
from phloem.bench.report import warnings
from phloem.bench.stats import Lag, summarize
from phloem.bench.words import Fit

from .conftest import FakeServer

ONE_SERVER, TWO_SERVERS = (816, 1104, 4), (816, 1656, 4)
"""Height and width of a picture with the panels of one server, and of two, in pixels; and its channels."""


def bench(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *arguments, "--quiet"], env={"COLUMNS": "120"})
    return result.exit_code, result.output


def written(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_one_server(fake: FakeServer, tmp_path: Path) -> None:
    flushed = fake.flushed
    code, output = bench(
        *("--url", fake.url, "--num-prompts", "6", "--input-len", "110", "--output-len", "4", "--concurrency", "3"),
        *("--flush-cache", "--output", str(tmp_path / "out.json"), "--details"),
    )
    assert code == 0, output
    assert "TTFT ms mean / p50 / p90 / p99" in output
    document = written(tmp_path / "out.json")
    assert document["servers"] == {"A": {"url": fake.url, "model": "ok"}}
    assert document["fit"] == {"per_word": 2.0, "fixed": 10.0}
    (turn,) = document["turns"]
    assert (turn["requests"], turn["succeeded"], turn["flushed"], turn["output_tokens"]) == (6, 6, True, 24)
    assert turn["input_tokens"] == 6 * 110  # the fit found how the server counts
    assert turn["cached_share"] == pytest.approx(0.5)
    assert len(turn["records"]) == 6
    assert fake.flushed == flushed + 1


def test_two_servers_in_turn(fake: FakeServer, tmp_path: Path) -> None:
    code, output = bench(
        *("--url", fake.url, "--url-b", fake.url, "--rounds", "2", "--num-prompts", "2", "--output-len", "2"),
        *("--warmup", "0", "--output", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")),
    )
    assert code == 0, output
    assert imread(tmp_path / "out.png").shape == TWO_SERVERS
    assert "B / A, median of 2 paired rounds" in output
    document = written(tmp_path / "out.json")
    assert [(turn["round"], turn["server"]) for turn in document["turns"]] == [(0, "A"), (0, "B"), (1, "B"), (1, "A")]
    assert document["ratios_b_over_a"]["cached_share"]["median"] == 1.0
    assert "records" not in document["turns"][0]


def test_answers_are_validated_against_their_schema(fake: FakeServer, tmp_path: Path) -> None:
    code, output = bench(
        *("--url", fake.url, "--model", "follows", "--workload", "json", "--num-prompts", "6", "--warmup", "0"),
        *("--output", str(tmp_path / "out.json")),
    )
    assert code == 1  # the fake follows one schema of six
    assert "invalid_json 5" in output
    assert written(tmp_path / "out.json")["turns"][0]["failures"] == {"invalid_json": 5}


def test_shared_prefix_and_trace(fake: FakeServer, tmp_path: Path) -> None:
    shared = (
        "--groups",
        "2",
        "--prompts-per-group",
        "3",
        "--prefix-len",
        "64",
        "--question-len",
        "16",
        "--output-len",
        "2",
    )
    code, output = bench("--url", fake.url, "--workload", "shared-prefix", *shared)
    assert code == 0, output
    assert "6 / 6" in output
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 8, "hash_ids": [1, 2]}\n' * 3)
    code, output = bench(
        "--url", fake.url, "--workload", "trace", "--trace", str(trace), "--scale", "0.25", "--no-stream"
    )
    assert code == 0, output
    assert "3 / 3" in output


def test_failures_are_shown_and_the_exit_code_tells(fake: FakeServer) -> None:
    code, output = bench("--url", fake.url, "--model", "overloaded", "--no-fit", "--num-prompts", "2")
    assert code == 1
    assert "http_429 2" in output
    assert "a warm-up request failed: http_429" in output


def test_a_server_that_is_not_there_is_one_line() -> None:
    code, output = bench("--url", "http://127.0.0.1:9", "--num-prompts", "1")
    assert code == 1
    assert output.startswith("phloem bench: cannot connect to 127.0.0.1:9")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--workload", "other"), "--workload"),
        (("--api", "grpc"), "--api"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--extra-body", "[]"), "--extra-body"),
        (("--extra-body", "{"), "--extra-body"),
        (("--workload", "trace"), "--trace"),
    ],
)
def test_wrong_options_exit_2_and_name_the_option(arguments: tuple[str, ...], names: str) -> None:
    code, output = bench(*arguments)
    assert code == 2
    assert names in output


def test_a_missing_trace_or_output_folder_is_told_before_work(fake: FakeServer, tmp_path: Path) -> None:
    code, output = bench("--url", fake.url, "--output", str(tmp_path / "no" / "out.json"))
    assert code == 1
    assert "--output" in output
    code, output = bench("--url", fake.url, "--workload", "trace", "--trace", str(tmp_path / "none.csv"), "--no-fit")
    assert code == 1
    assert "none.csv" in output


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--num-prompts", "6", "--output-len", "4"), 0),
        (("--num-prompts", "1", "--output-len", "1"), 0),  # no time per token in an answer of one
        (("--num-prompts", "2", "--output-len", "4", "--no-stream"), 0),
        (("--num-prompts", "2", "--model", "overloaded", "--no-fit"), 1),
        (("--num-prompts", "2", "--rounds", "3", "--output-len", "4"), 0),
    ],
)
def test_a_picture_shows_whatever_there_is(
    fake: FakeServer, tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    picture = tmp_path / "serve.png"
    found, output = bench("--url", fake.url, *options, "--warmup", "0", "--plot", str(picture))
    assert found == code, output
    assert "drawn into" in output
    assert imread(picture).shape == ONE_SERVER
    assert imread(picture).std() > 0


def turn(index: int, label: str, seconds: float, failure: str = "") -> Turn:
    """A round of one request."""
    records = [Record(0, first_s=seconds / 2, last_s=seconds, end_s=seconds, output_tokens=2, failure=failure)]
    return Turn(index, label, False, summarize(records, Lag(0, 0, 0, 0)), records)


@pytest.mark.parametrize("failures", [("", ""), ("", "http_429"), ("http_429", ""), ("http_429", "timeout")])
def test_two_servers_are_drawn_whoever_of_them_fails(failures: tuple[str, str], tmp_path: Path) -> None:
    outcome = Outcome(
        {"A": "m$1$", "B": "m_2"}, Fit(), [turn(0, "A", 1.0, failures[0]), turn(0, "B", 2.0, failures[1])]
    )
    plot(Plan(), [Server("A", "http://a/$x"), Server("B", "http://b/$y")], outcome, tmp_path / "serve.png")
    assert imread(tmp_path / "serve.png").shape == TWO_SERVERS


def test_a_picture_that_can_not_be_written_is_one_line(fake: FakeServer, tmp_path: Path) -> None:
    asked = len(fake.bodies)
    code, output = bench("--url", fake.url, "--plot", str(tmp_path / "no" / "serve.png"))
    assert (code, output) == (1, f"phloem bench: --plot: the folder {tmp_path / 'no'} does not exist\n")
    assert len(fake.bodies) == asked
    code, output = bench("--url", fake.url, "--num-prompts", "1", "--output-len", "2", "--plot", str(tmp_path))
    assert code == 1
    assert output.splitlines()[-1].startswith("phloem bench: [Errno ")
    assert "Traceback" not in output


def test_without_matplotlib_a_picture_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, output = bench("--plot", str(tmp_path / "serve.png"))
    assert (code, output) == (2, "phloem bench: --plot needs matplotlib: install Phloem with the extra 'bench'\n")


def test_help_names_the_workloads_that_exist() -> None:
    assert tuple(Workload) == WORKLOADS


def test_a_slow_generator_is_not_taken_for_a_slow_server() -> None:
    records = [Record(0, end_s=1.0, output_tokens=1)]
    assert warnings([summarize(records, Lag(1.0, 9.0, 0.0, 0.3))]) == []
    assert "lagged" in warnings([summarize(records, Lag(20.0, 90.0, 0.0, 0.3))])[0]
    assert "bottleneck" in warnings([summarize(records, Lag(1.0, 9.0, 0.0, 0.95))])[0]


def test_rounds_are_paired_by_number_not_by_order() -> None:
    turns = [turn(0, "A", 1.0), turn(0, "B", 3.0), turn(1, "B", 20.0), turn(1, "A", 10.0)]
    ratio = Outcome({"A": "m", "B": "m"}, Fit(), turns).comparison()["latency_ms.mean"]
    assert (ratio.least, ratio.most) == (2.0, 3.0)


def test_keys_are_not_written_down() -> None:
    assert "secret" not in repr(Server("A", "http://x", {"authorization": "Bearer secret"}))
    assert "authorization" not in str(Plan())
