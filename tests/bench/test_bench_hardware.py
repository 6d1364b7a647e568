"""The worker beside its machine: what figures say, by hand, and a small run of the whole command."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.hardware.aims import aims
from phloem.bench.hardware.bed import prompt_flops
from phloem.bench.hardware.figures import DECODE, PREFILL, Limits, Row, Sample, middle, rows_of
from phloem.bench.hardware.limits import Memory
from phloem.bench.hardware.neighbours import Neighbours, busy_s
from phloem.bench.hardware.plan import HardwarePlan
from phloem.bench.hardware.report import disturbance, verdicts
from phloem.bench.hardware.run import HardwareOutcome
from phloem_gpu_worker.architecture import Architecture

SMALL = ["hardware", "--model", "tiny", "--quiet", "--rounds", "2", "--tries", "1", "--buffer-mb", "4"]
SMALL += ["--square", "64", "--rows", "1", "--rows", "3", "--prompt", "33", "--context", "20"]


def limits(bandwidth: float, rate: float) -> Limits:
    return Limits({"slow": bandwidth / 2, "fast": bandwidth}, {"torch": rate, "kernels": rate * 2}, rate)


def row(kind: str, size: int, of_limit: float, quantize: str = "none") -> Row:
    return Row(quantize, kind, size, ours_ms=2.0, torch_ms=4.0, of_torch=0.5, of_limit=of_limit)


def test_a_step_is_measured_by_the_best_way_of_reading_and_a_prompt_by_the_rate_of_torch() -> None:
    here = limits(bandwidth=10, rate=100)
    step = Sample("none", DECODE, 1, work=10**9, ours_s=0.15, torch_s=0.3, limits=here)
    assert step.of_limit == pytest.approx(1.5)  # 1 GB at 10 GB/s takes 0.1 s
    prompt = Sample("none", PREFILL, 64, work=10**10, ours_s=0.2, torch_s=0.1, limits=here)
    assert prompt.of_limit == pytest.approx(0.5)  # 50 of 100 GFLOP/s


def test_ratios_are_of_the_same_round_so_that_a_slow_minute_changes_none() -> None:
    samples = []
    for slowness in (1, 1, 3, 3, 3):
        here = limits(10 / slowness, 100 / slowness)
        samples.append(Sample("int8", DECODE, 4, 10**9, 0.12 * slowness, 0.24 * slowness, here))
        samples.append(Sample("none", DECODE, 4, 10**9, 0.2 * slowness, 0.1 * slowness, here))
    eight, none = rows_of(samples)
    assert (eight.quantize, none.quantize) == ("int8", "none")
    assert (eight.of_limit, eight.of_torch) == pytest.approx((1.2, 0.5))
    assert (none.of_limit, none.of_torch) == pytest.approx((2.0, 2.0))
    assert eight.ours_ms == pytest.approx(360)
    assert eight.tokens_per_s == pytest.approx(4 / 0.36)
    assert middle([one.limits for one in samples]).bandwidth == pytest.approx(10 / 3)


def test_aims_hold_up_to_their_bounds_and_not_beyond() -> None:
    rows = [row(DECODE, 1, 1.6), row(DECODE, 1, 1.61, "int4"), row(DECODE, 16, 9.0)]
    rows += [row(PREFILL, 64, 0.6), row(PREFILL, 512, 0.59)]
    assert [(aim.holds, aim.unit) for aim in aims(rows)] == [(True, "x"), (False, "x"), (True, "%"), (False, "%")]


def test_what_does_not_hold_is_said_aloud() -> None:
    outcome = HardwareOutcome("some", "bfloat16", "avx2", 2)
    good = Sample("none", DECODE, 1, 10**9, 0.1, 0.1, limits(10, 100))
    outcome.samples = [good, replace(good, quantize="int8", ours_s=0.2)]
    held, missed = verdicts(outcome)
    assert held.startswith("held: ")
    assert missed.startswith("NOT held: ")
    assert "int8" in missed
    assert "2.00 x, aim <= 1.6 x" in missed


def test_the_work_of_a_prompt() -> None:
    arch = Architecture(
        family="llama", vocab_size=100, hidden_size=8, intermediate_size=16, layers=3, heads=2, kv_heads=1, head_dim=4,
        rms_eps=1e-5, context_length=64, rope_theta=1e4, rope_scaling=None, tied_embeddings=True, qk_norm=False,
        windows=(None, None, None),
    )  # fmt: skip
    block = 8 * (8 + 4 + 4) + 8 * 8 + 8 * 32 + 16 * 8  # q, k, v; out; gate and up; down
    pairs = 1 + 2 + 3 + 4 + 5  # each token with itself and those before it, in two products of heads x head_dim
    assert prompt_flops(arch, 5) == 2 * (3 * (5 * block + 2 * pairs * 8) + 100 * 8)


STAT = """cpu  900 900 900 900 900 900 900 900 900 900
cpu0 100 20 30 1000 50 5 5 10 7 7
cpu1 200 0 0 2000 0 0 0 0 0 0
cpu11 9999 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_a_core_is_busy_when_it_neither_idles_nor_waits_for_a_disk() -> None:
    assert busy_s(STAT, [0], ticks=100) == pytest.approx(1.7)
    assert busy_s(STAT, [0, 1], ticks=100) == pytest.approx(3.7)


def test_what_others_compute_meanwhile_is_told() -> None:
    seconds = iter([0.0, 30.0])
    core = min(os.sched_getaffinity(0))
    ticks = os.sysconf("SC_CLK_TCK")
    texts = iter([f"cpu{core} 0 0 0 0 0 0 0 0", f"cpu{core} {20 * ticks} 0 {10 * ticks} 0 0 0 0 0"])
    moments = iter([5.0, 25.0])
    watch = Neighbours(lambda: next(texts), lambda: next(seconds) / 2, lambda: next(moments))
    others = watch.cores()
    assert others == pytest.approx((30 - 15) / 20)
    outcome = HardwareOutcome("some", "bfloat16", "avx2", 2, others=others)
    assert "others used 0.8 cores" in disturbance(outcome)
    for quiet in (0.0, 0.05, None):
        assert disturbance(replace(outcome, others=quiet)) == ""


def test_nobody_says_who_computes() -> None:
    def missing() -> str:
        raise FileNotFoundError("/proc/stat")

    assert Neighbours(missing).cores() is None


def test_memory_is_read_in_several_ways_and_all_of_it_was_written() -> None:
    rates = Memory(1 << 20).rates(tries=2)
    assert len(rates) > 2
    assert all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize(
    "change",
    [
        {"rows": (0,)}, {"rows": (2000,)}, {"rows": ()}, {"prompts": (1,)}, {"quantize": ()}, {"rounds": 0}, {"tries": 0},
        {"context": 0}, {"buffer_mb": 0}, {"square": 1}, {"threads": -1},
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^--"):
        HardwarePlan(**change)  # type: ignore[arg-type]


def test_a_small_run_measures_all_and_writes_what_it_says(tmp_path: Path) -> None:
    out, picture = tmp_path / "hardware.json", tmp_path / "hardware.png"
    result = CliRunner().invoke(app, [*SMALL, "--output", str(out), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    sizes = [(one["quantize"], one["kind"], one["size"]) for one in document["rows"]]
    each = [(DECODE, 1), (DECODE, 3), (PREFILL, 33)]
    assert sizes == [(quantize, kind, size) for quantize in ("none", "int8", "int4") for kind, size in each]
    assert all(one["ours_ms"] > 0 and one["torch_ms"] > 0 and one["of_limit"] > 0 for one in document["rows"])
    assert document["weight_bytes"]["int4"] < document["weight_bytes"]["int8"] < document["weight_bytes"]["none"]
    assert len(document["samples"]) == 2 * len(sizes)
    assert len(document["aims"]) == 6
    assert document["others_cores"] >= 0
    assert ("NOT quiet" in result.output) is (document["others_cores"] > 0.1)
    for aim in document["aims"]:
        assert f"{'held' if aim['holds'] else 'NOT held'}: {aim['text']}" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--rows", "0"], "--rows"),
        (["--quantize", "int3"], "none, int8, int4"),
        (["--output", "/nowhere/at/all.json"], "/nowhere/at"),
    ],
)
def test_wrong_options_are_named_before_anything_is_measured(more: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["hardware", "--model", "tiny", *more])
    assert result.exit_code == 2
    assert named in result.output
    assert result.output.count("\n") == 1


def test_without_kernels_or_without_the_model_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHLOEM_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "/no/compiler")
    for model, named in (("tiny", "no C++ compiler"), ("no such model", "no such model")):
        result = CliRunner().invoke(app, ["hardware", "--quiet", "--model", model])
        assert result.exit_code == 1
        assert named in result.output
        assert result.output.count("\n") == 1
