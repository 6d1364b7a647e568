"""What quantised weights cost: the parts by hand, the whole command on the tiny model, the aims on the default one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.quality.aims import aims
from phloem.bench.quality.figures import PLAIN, REFERENCE, Reading, until_first_difference
from phloem.bench.quality.plan import QualityPlan
from phloem.bench.quality.run import quality
from phloem.bench.quality.sample import PROSE, sample
from phloem_gpu_worker.kernels.build import NoKernels, pick_level
from phloem_model import ModelError, resolve

SMALL = ["quality", "--model", "tiny", "--window", "96", "--windows", "2", "--prompts", "3", "--tokens", "8", "--quiet"]


@pytest.fixture
def _kernels() -> None:
    """Skips where this machine can't have them."""
    try:
        pick_level("auto")
    except NoKernels as error:
        pytest.skip(str(error))


def reading(mode: str, perplexity: float) -> Reading:
    return Reading(mode, 1, -math.log(perplexity), 1.0, 1.0)


def test_the_first_difference_ends_what_is_equal() -> None:
    assert until_first_difference([1, 2, 3], [1, 2, 3]) == 3
    assert until_first_difference([1, 5, 3], [1, 2, 3]) == 1
    assert until_first_difference([], []) == 0


def test_aims_are_about_the_weights_in_bfloat16() -> None:
    found = aims([reading(REFERENCE, 5.0), reading(PLAIN, 20.0), reading("int8", 20.1), reading("int4", 22.0)])
    assert [aim.value for aim in found] == pytest.approx([0.5, 10.0])
    assert [aim.holds for aim in found] == [True, False]


def test_the_text_is_cut_into_windows_and_paragraphs_begin_as_prompts() -> None:
    files = resolve("tiny")  # whose tokens are bytes
    text = PROSE.read_bytes()
    given = sample(QualityPlan("tiny", window=500, prompts=16, prompt_tokens=10), files)
    assert bytes(token for window in given.windows for token in window) == text
    assert {len(window) for window in given.windows[:-1]} == {500}
    assert [bytes(prompt) for prompt in given.prompts[:2]] == [text[:10], text.split(b"\n\n")[1][:10]]
    assert len(given.prompts) == 16
    assert len(sample(QualityPlan("tiny", windows=3), files).windows) == 3
    assert 1500 < len(text.split()) < 2000


@pytest.mark.usefixtures("_kernels")
def test_the_command_on_the_tiny_model(tmp_path: Path) -> None:
    picture, file = tmp_path / "quality.png", tmp_path / "quality.json"
    result = CliRunner().invoke(app, [*SMALL, "--output", str(file), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    document = json.loads(file.read_text())
    modes = document["modes"]
    assert list(modes) == [REFERENCE, PLAIN, "int8", "int4"]  # its weights are no GGUF: none are stored quantised
    assert document["tokens"] == 2 * 95
    assert modes[REFERENCE]["greedy_share"] == modes[REFERENCE]["next_share"] == 1.0
    assert modes[PLAIN]["perplexity"] == pytest.approx(modes[REFERENCE]["perplexity"], rel=0.01)
    assert modes["int8"]["perplexity"] == pytest.approx(modes[REFERENCE]["perplexity"], rel=0.02)
    assert 0.9 <= modes["int8"]["next_share"] <= 1.0
    assert modes["int4"]["weight_bytes"] < modes["int8"]["weight_bytes"] < modes[PLAIN]["weight_bytes"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    verdicts = [line for line in result.output.splitlines() if line.startswith(("held: ", "NOT held: "))]
    assert len(verdicts) == len(document["aims"]) == 2


@pytest.mark.parametrize(
    ("options", "problem", "code"),
    [
        (["--quantize", "int3"], "--quantize must be one of", 2),
        (["--window", "1"], "--window: 2 to", 2),
        (["--prompts", "17"], "--prompts: 1 to 16", 2),
        (["--output", "nowhere/at/all.json"], "--output: the folder", 2),
        (["--model", "no such model"], "no model 'no such model'", 1),
        (["--window", "4096"], "context holds 2048 tokens", 1),
    ],
)
def test_what_cant_be_measured_is_one_line(options: list[str], problem: str, code: int) -> None:
    result = CliRunner().invoke(app, [*SMALL, *options])
    assert result.exit_code == code
    assert result.output.startswith("phloem bench: ")
    assert problem in result.output
    assert result.output.count("\n") == 1


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.usefixtures("_kernels")
def test_the_default_model_keeps_its_perplexity() -> None:
    """At most 1 % worse than in bfloat16 with int8, 8 % with int4. Its file has four bits, which int4 and stored keep."""
    try:
        files = resolve("smollm2")
    except ModelError as error:
        pytest.skip(f"the default model is not available: {error}")
    outcome = quality(QualityPlan(str(files.weights), prompts=2, tokens=8))
    found = {one.mode: one for one in outcome.readings}
    assert [aim for aim in aims(outcome.readings) if not aim.holds] == []
    assert found[PLAIN].perplexity == pytest.approx(found[REFERENCE].perplexity, rel=0.002)
    assert found["stored"].perplexity == pytest.approx(found[REFERENCE].perplexity, rel=0.005)
