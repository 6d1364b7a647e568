"""How idle a device was: the figures by hand, and one short run with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.overlap import run
from phloem.bench.overlap.figures import WARM_STEPS, Step, TooFewSteps, full_steps, idle, middle
from phloem.bench.overlap.run import OverlapPlan

RUN = ["overlap", "--rows", "8", "--step-ms", "4", "--steps", "60", "--rounds", "1"]


def steps(count: int, idle_ms: float = 0.0, rows: int = 4) -> list[Step]:
    return [Step(n, n * (8.0 + idle_ms) / 1e3, rows, rows, 8.0, idle_ms) for n in range(1, count + 1)]


def test_only_full_steps_count_and_each_once() -> None:
    run = steps(WARM_STEPS + 12)
    prompt = Step(0, 0.0, 4, 1, 8.0, 50.0)
    tail = Step(99, 1.0, 3, 3, 8.0, 50.0)
    resent = Step(WARM_STEPS + 12, 9.0, 4, 4, 8.0, 0.0)
    found = full_steps([prompt, *run, tail, resent], rows=4)
    assert [step.number for step in found] == list(range(WARM_STEPS + 1, WARM_STEPS + 13))
    assert found[-1].arrived_s < 9.0


def test_idle_is_a_share_of_the_time_and_the_clock_agrees() -> None:
    found = idle(steps(100, idle_ms=2.0), step_ms=8.0)
    assert (found.idle_share, found.lost_share, found.period_ms) == pytest.approx((0.2, 0.2, 10.0))
    assert (found.late_steps, found.idle_p50_us, found.idle_max_ms) == pytest.approx((100, 2000, 2.0))
    assert idle(steps(100), step_ms=8.0).lost_share == pytest.approx(0.0)
    with pytest.raises(TooFewSteps, match="more --steps"):
        idle(steps(9), step_ms=8.0)


def test_medians_over_runs() -> None:
    runs = [idle(steps(50, idle_ms=wait), 8.0) for wait in (0.0, 2.0, 8.0)]
    assert middle(runs).idle_share == pytest.approx(0.2)
    assert middle(runs).idle_max_ms == 8.0
    assert middle(runs).steps == 150


def test_more_than_the_stand_in_holds_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="fewer --steps"):
        OverlapPlan(rows=256, steps=2000)
    result = CliRunner().invoke(app, ["overlap", "--steps", "8000"])
    assert result.exit_code == 2


@pytest.mark.integration
@pytest.mark.alone
def test_both_depths_with_real_services_over_nats(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*RUN, "--output", str(tmp_path / "overlap.json")])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "overlap.json").read_text())
    assert [turn["depth"] for turn in document["turns"]] == [2, 1]
    for depth in ("2", "1"):
        figures = document["medians"][depth]
        assert figures["steps"] >= 40
        assert 0 <= figures["idle_share"] < 1
        assert figures["period_ms"] >= 3.9  # the stand-in really takes its time


@pytest.mark.integration
@pytest.mark.alone
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nats://127.0.0.1:1"])
def test_no_broker_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CONNECT_S", 0.5)
    result = CliRunner().invoke(app, [*RUN, "--nats-url", url])
    assert result.exit_code == 1
    assert result.output.startswith("phloem bench: ")
