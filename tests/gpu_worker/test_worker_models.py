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
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.runner import TorchRunner

from .batches import batch_of
from .tiny_models import CONFIGS, VOCAB, load_reference

Folder = Callable[[str], Path]
CPU = torch.device("cpu")


def runner_of(folder: Path, attention: AttentionBackend, page_size: int) -> TorchRunner:
    decoder = load_decoder(folder, torch.float32, CPU)
    return make_runner(decoder, PoolSize(page_size, tokens=512), attention)


def pages_of(page_size: int, first: int, tokens: int) -> list[int]:
    """A page table in descending order, so that order of pages and of positions differ."""
    return list(range(first + tokens // page_size, first - 1, -1))


def ids_of(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, VOCAB, count)]


def reference_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = load_reference(folder)(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention])
def test_logits_equal_transformers(model_folder: Folder, name: str, backend: type[AttentionBackend]) -> None:
    folder = model_folder(name)
    ids = ids_of(40, 1)
    runner = runner_of(folder, backend(), 16)
    logits = runner.forward(batch_of([(ids, 0, pages_of(16, 3, 40))], every=True)).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(folder, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "qwen3"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_chunks_mixed_with_decoding_give_the_same_logits(model_folder: Folder, name: str, page_size: int) -> None:
    """A prompt in chunks beside another sequence that decodes token by token: both as if alone and whole."""
    folder = model_folder(name)
    long, other = ids_of(37, 2), ids_of(30, 3)
    runner = runner_of(folder, TorchAttention(), page_size)
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


def test_rows_of_very_different_length_decode_together(model_folder: Folder) -> None:
    folder = model_folder("llama")
    runner = runner_of(folder, TorchAttention(), 16)
    sequences = [ids_of(length, length) for length in (2, 300, 90)]
    tables = [pages_of(16, 0, 2), pages_of(16, 1, 300), pages_of(16, 25, 90)]
    for ids, table in zip(sequences, tables, strict=True):
        runner.forward(batch_of([(ids[:-1], 0, table)]))
    rows = [([ids[-1]], len(ids) - 1, table) for ids, table in zip(sequences, tables, strict=True)]
    logits = runner.forward(batch_of(rows)).logits
    expected = torch.stack([reference_logits(folder, ids)[-1] for ids in sequences])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_prompt_scores_are_logprobs_of_the_reference(model_folder: Folder) -> None:
    folder = model_folder("llama")
    ids = ids_of(100, 5)
    runner = runner_of(folder, TorchAttention(), 16)
    span = ScoreSpan(0, 4, np.array(ids[5:95]), 5, top=3)
    (scoring,) = runner.forward(batch_of([(ids, 0, pages_of(16, 0, 100))], scores=(span,))).scores
    scores = scoring.read()
    expected = reference_logits(folder, ids).log_softmax(-1)[4:94]
    wanted = expected.gather(1, torch.tensor(ids[5:95])[:, None]).squeeze(1)
    torch.testing.assert_close(torch.from_numpy(scores.logprobs), wanted, atol=1e-4, rtol=1e-4)
    assert scores.top_ids.tolist() == expected.topk(3).indices.tolist()


def test_bfloat16_is_near_float32(model_folder: Folder) -> None:
    folder = model_folder("qwen3")
    ids = ids_of(24, 6)
    decoder = load_decoder(folder, torch.bfloat16, CPU)
    runner = make_runner(decoder, PoolSize(16, tokens=64))
    logits = runner.forward(batch_of([(ids, 0, [0, 1])], every=True)).logits
    expected = reference_logits(folder, ids)
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=-1).min() > 0.99
