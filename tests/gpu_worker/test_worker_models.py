"""The decoder against ``transformers``: every family, backend, page size and chunking gives its logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from phloem_gpu_worker.attention import AttentionBackend, ReferenceAttention
from phloem_gpu_worker.attention_torch import TorchAttention
from phloem_gpu_worker.batch import ScoreSpan
from phloem_gpu_worker.draws import Wanted
from phloem_gpu_worker.errors import UnsupportedModel
from phloem_gpu_worker.load import PoolSize, load_decoder, load_native, make_runner
from phloem_gpu_worker.native import NativeCompute, NativeDecoder
from phloem_gpu_worker.runner import TorchRunner
from phloem_gpu_worker.sampler import draw

from .batches import batch_of, ids_of, pages_of
from .compiled import EACH_LEVEL, kernels, team_of
from .mixed_rows import assert_rows_are_their_own
from .test_worker_sampler import draws_of
from .tiny_models import CONFIGS, load_reference

Folder = Callable[[str], Path]
CPU = torch.device("cpu")
SIZE = PoolSize(16, tokens=24 * 64)


BACKENDS: dict[str, type[AttentionBackend] | None] = {
    "reference": ReferenceAttention,
    "torch": TorchAttention,
    "kernels": None,
}
FULL = [name for name in CONFIGS if not name.endswith("-window")]
"""What the kernels compute."""
SUITED = [(backend, name) for backend in BACKENDS for name in (FULL if backend == "kernels" else CONFIGS)]


def runner_of(folder: Path, backend: str, page_size: int) -> TorchRunner:
    size, attention = PoolSize(page_size, tokens=512), BACKENDS[backend]
    if attention is None:
        return make_runner(load_native(folder, torch.float32, kernels()), size)
    return make_runner(load_decoder(folder, torch.float32, CPU), size, attention())


def reference_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = load_reference(folder)(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize(("backend", "name"), SUITED)
def test_logits_equal_transformers(model_folder: Folder, name: str, backend: str) -> None:
    folder = model_folder(name)
    ids = ids_of(40, 1)
    runner = runner_of(folder, backend, 16)
    logits = runner.forward(batch_of([(ids, 0, pages_of(16, 3, 40))], every=True)).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(folder, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "name"),
    [("torch", "llama"), ("torch", "qwen2-window"), ("torch", "qwen3"), ("kernels", "qwen2"), ("kernels", "qwen3")],
)
@pytest.mark.parametrize("page_size", [1, 16])
def test_chunks_mixed_with_decoding_give_the_same_logits(
    model_folder: Folder, backend: str, name: str, page_size: int
) -> None:
    """A prompt in chunks beside another sequence that decodes token by token: both as if alone and whole."""
    folder = model_folder(name)
    long, other = ids_of(37, 2), ids_of(30, 3)
    runner = runner_of(folder, backend, page_size)
    far = 512 // page_size - 40 // page_size - 1
    long_table, other_table = pages_of(page_size, 2, 37), pages_of(page_size, far, 30)
    runner.forward(batch_of([(other[:20], 0, other_table)]))
    got_long, got_other = [], []
    for step, (begin, end) in enumerate([(0, 16), (16, 17), (17, 33), (33, 37)]):
        rows = [(long[begin:end], begin, long_table), ([other[20 + step]], 20 + step, other_table)]
        logits = runner.forward(batch_of(rows)).logits
        got_long.append(logits[0])
        got_other.append(logits[1])
    expected = reference_logits(folder, long)
    torch.testing.assert_close(torch.stack(got_long), expected[[15, 16, 32, 36]], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.stack(got_other), reference_logits(folder, other)[20:24], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "kernels"])
def test_rows_of_very_different_length_decode_together(model_folder: Folder, backend: str) -> None:
    folder = model_folder("llama")
    runner = runner_of(folder, backend, 16)
    sequences = [ids_of(length, length) for length in (2, 300, 90)]
    tables = [pages_of(16, 0, 2), pages_of(16, 1, 300), pages_of(16, 25, 90)]
    for ids, table in zip(sequences, tables, strict=True):
        runner.forward(batch_of([(ids[:-1], 0, table)]))
    rows = [([ids[-1]], len(ids) - 1, table) for ids, table in zip(sequences, tables, strict=True)]
    logits = runner.forward(batch_of(rows)).logits
    expected = torch.stack([reference_logits(folder, ids)[-1] for ids in sequences])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "kernels"])
def test_prompt_scores_are_logprobs_of_the_reference(model_folder: Folder, backend: str) -> None:
    folder = model_folder("llama")
    ids = ids_of(100, 5)
    runner = runner_of(folder, backend, 16)
    span = ScoreSpan(0, 4, np.array(ids[5:95]), 5, top=3)
    (scoring,) = runner.forward(batch_of([(ids, 0, pages_of(16, 0, 100))], scores=(span,))).scores
    scores = scoring.read()
    expected = reference_logits(folder, ids).log_softmax(-1)[4:94]
    wanted = expected.gather(1, torch.tensor(ids[5:95])[:, None]).squeeze(1)
    torch.testing.assert_close(torch.from_numpy(scores.logprobs), wanted, atol=1e-4, rtol=1e-4)
    assert scores.top_ids.tolist() == expected.topk(3).indices.tolist()


@pytest.mark.parametrize("backend", ["torch", "kernels"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_bfloat16_is_near_float32(model_folder: Folder, backend: str, name: str) -> None:
    """Untied in the second: the embedding is a weight of its own."""
    folder = model_folder(name)
    ids = ids_of(24, 6)
    if backend == "kernels":
        runner = make_runner(load_native(folder, torch.bfloat16, kernels()), PoolSize(16, tokens=64))
    else:
        runner = make_runner(load_decoder(folder, torch.bfloat16, CPU), PoolSize(16, tokens=64))
    logits = runner.forward(batch_of([(ids, 0, [0, 1])], every=True)).logits
    expected = reference_logits(folder, ids)
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=-1).min() > 0.99


@pytest.mark.parametrize("backend", ["torch", "kernels"])
def test_draws_from_some_of_the_logits_become_the_newest_tokens_of_their_slots(
    model_folder: Folder, backend: str
) -> None:
    runner, same = (runner_of(model_folder("llama"), backend, 16) for _ in range(2))
    prompts = [ids_of(20, seed) for seed in range(3)]
    tables = [pages_of(16, 4 * number, 21) for number in range(3)]
    batch = batch_of([(ids, 0, table) for ids, table in zip(prompts, tables, strict=True)])
    draws = draws_of(2, temperature=[0.0, 1.5], logprobs=[3, -1])
    expected = draw(same.forward(batch).logits[[2, 0]], draws).read()
    drawn = runner.draw(runner.forward(batch), Wanted(draws, np.array([5, 9]), np.array([2, 0]))).result().drawn
    assert drawn is not None
    assert drawn.ids.tolist() == expected.ids.tolist()
    assert drawn.scores is not None
    assert expected.scores is not None
    assert drawn.scores.top_ids.tolist() == expected.scores.top_ids.tolist()
    unknown, known = (
        batch_of([([tokens[0]], 20, tables[2]), ([tokens[1]], 20, tables[0])])
        for tokens in ([-1 - 5, -1 - 9], expected.ids.tolist())
    )
    assert torch.equal(runner.forward(unknown).logits, same.forward(known).logits)


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_rows_logits_are_the_same_bit_for_bit_whatever_is_computed_beside_it(
    model_folder: Folder, name: str, dtype: torch.dtype, level: str
) -> None:
    """In chunks of any size, beside any others, on any pages."""
    assert_rows_are_their_own(load_native(model_folder(name), dtype, kernels(level)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_that_verifies_drafts_computes_what_decoding_does_and_what_is_refused_leaves_no_trace(
    model_folder: Folder, dtype: torch.dtype
) -> None:
    """Three rows of drafts beside one that decodes; the drafts are right up to a place, and from there on the row goes on otherwise."""
    decoder = load_native(model_folder("llama"), dtype, kernels())
    texts, wrong = [ids_of(40, seed) for seed in range(4)], ids_of(8, 99)
    tables = [pages_of(4, 16 * row, 40) for row in range(4)]
    alone = [
        make_runner(decoder, PoolSize(4, tokens=512)).forward(batch_of([(ids, 0, table)], every=True)).logits
        for ids, table in zip(texts, tables, strict=True)
    ]
    runner = make_runner(decoder, PoolSize(4, tokens=512))
    runner.forward(batch_of([(ids[:20], 0, table) for ids, table in zip(texts, tables, strict=True)]))
    right = [0, 3, 5, 0]
    rows = [
        (texts[row][20 : 21 + right[row]] + (wrong[right[row] : 5] if row < 3 else []), 20, tables[row])
        for row in range(4)
    ]
    logits = torch.split(runner.forward(batch_of(rows, every=True)).logits, [len(row[0]) for row in rows])
    for row in range(4):
        good = 1 + right[row]
        assert torch.equal(logits[row][:good], alone[row][20 : 20 + good])
    rest = [(texts[row][21 + right[row] :], 21 + right[row], tables[row]) for row in range(4)]
    logits = torch.split(runner.forward(batch_of(rest, every=True)).logits, [len(row[0]) for row in rest])
    for row in range(4):
        assert torch.equal(logits[row], alone[row][21 + right[row] :])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_helpers_that_come_late_or_not_at_all_change_no_bit(model_folder: Folder, name: str) -> None:
    """More threads than cores: helpers lose theirs in the middle of a task, find it done, and must throw theirs away."""
    rng = np.random.default_rng(11)
    with team_of(1) as alone, team_of(7) as helped:
        runners = [make_runner(load_native(model_folder(name), torch.float32, made), SIZE) for made in (alone, helped)]
        tables = [pages_of(16, 4 * row, 64) for row in range(24)]
        prompts = batch_of([(ids_of(40, row), 0, table) for row, table in enumerate(tables)])
        for runner in runners:
            runner.forward(prompts)
        for step in range(120):
            rows = rng.permutation(len(tables))[: rng.integers(1, len(tables) + 1)].tolist()
            batch = batch_of([(ids_of(1, 100 * step + row), int(rng.integers(1, 60)), tables[row]) for row in rows])
            expected, got = (runner.forward(batch).logits for runner in runners)
            assert torch.equal(got, expected), (step, rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_a_number_stays_in_its_row_until_its_pages_are_scrubbed(
    model_folder: Folder, dtype: torch.dtype
) -> None:
    decoder = load_native(model_folder("qwen3"), dtype, kernels())
    compute = NativeCompute(decoder, 8, 16)
    runner = TorchRunner(compute)
    rows = [(ids_of(20, 1), 0, [0, 1]), (ids_of(20, 2), 0, [2, 3])]
    runner.forward(batch_of(rows))
    after = batch_of([([5], 20, [0, 1]), ([6], 20, [2, 3])])
    expected = runner.forward(after).logits
    compute._values[1][:, 2] = float("nan")
    logits = runner.forward(after).logits
    assert torch.equal(logits[0], expected[0])
    assert logits[1].isnan().all()
    runner.scrub(np.array([2, 3]))
    # Whoever gets the page next reads of it only what it wrote, though the kernels look at all of its positions.
    assert torch.equal(runner.forward(batch_of([(ids_of(20, 1), 0, [2, 0])])).logits[0], expected_alone(decoder))


def expected_alone(decoder: NativeDecoder) -> torch.Tensor:
    """Logits of the first of these rows, on clean pages."""
    return make_runner(decoder, PoolSize(16, tokens=64)).forward(batch_of([(ids_of(20, 1), 0, [0, 1])])).logits[0]


@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window"])
def test_models_the_kernels_cant_compute_are_refused(model_folder: Folder, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="sliding windows"):
        load_native(model_folder(name), torch.float32, kernels())
