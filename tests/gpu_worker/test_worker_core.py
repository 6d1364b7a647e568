"""Plans, scripted step by step against real tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from phloem_gpu_worker.core import WorkerCore
from phloem_gpu_worker.errors import BadPlan
from phloem_proto.codec import pack_ids, unpack_floats, unpack_ids
from phloem_proto.messages import Plan, SamplingParams, SlotOpen

from .cores import core_of
from .driver import Driver
from .tiny_models import VOCAB, load_reference

Folder = Callable[[str], Path]


def prompt_of(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, VOCAB, count)]


def reference_greedy(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    model, ids = load_reference(folder), list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def alone(core: WorkerCore, prompt: list[int], tokens: int, chunk: int = 512, **params: Any) -> list[int]:
    """Output of one sequence that has the core for itself."""
    driver = Driver(core)
    sequence = driver.open(0, prompt, **params)
    driver.finish(tokens, chunk)
    driver.close(0)
    driver.run({})
    assert core.live == 0
    return sequence.output


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_greedy_output_equals_transformers(model_folder: Folder, name: str) -> None:
    prompt = prompt_of(33, 1)
    expected = reference_greedy(model_folder(name), prompt, 12)
    assert alone(core_of(model_folder(name)), prompt, 12, chunk=16) == expected


MANY: list[tuple[list[int], dict[str, Any]]] = [
    (prompt_of(40, 1), {}),
    (prompt_of(3, 2), {"temperature": 1.0, "seed": 7}),
    (prompt_of(17, 3), {"temperature": 0.8, "top_p": 0.9, "seed": 8, "child": 2}),
    (prompt_of(60, 4), {"temperature": 1.5, "top_k": 20, "seed": 2**64 - 1}),
    (prompt_of(21, 5), {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}),
    (prompt_of(9, 6), {"temperature": 1.0, "min_p": 0.05, "logit_bias": ((7, 3.0), (9, -100.0)), "min_tokens": 4}),
    (prompt_of(30, 7), {"temperature": 0.7, "logprobs": 2}),
]


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 512), (16, 512), (16, 7), (4, 16)])
def test_a_request_gives_the_same_tokens_in_any_batch_page_size_and_chunking(
    model_folder: Folder, page_size: int, chunk: int
) -> None:
    folder = model_folder("qwen3")
    expected = [alone(core_of(folder), prompt, 20, **params) for prompt, params in MANY]
    driver = Driver(core_of(folder, page_size=page_size))
    sequences = [driver.open(slot, prompt, **params) for slot, (prompt, params) in enumerate(MANY)]
    driver.finish(20, chunk)
    assert [sequence.output for sequence in sequences] == expected


@pytest.mark.parametrize("case", range(len(MANY)))
def test_held_output_continues_as_if_never_interrupted(model_folder: Folder, case: int) -> None:
    """What retraction and a lost worker rely on: prompt + output are replayed, output stays output."""
    prompt, params = MANY[case]
    core = core_of(model_folder("qwen3"))
    whole = alone(core, prompt, 20, **params)
    driver = Driver(core)
    resumed = driver.open(3, prompt, whole[:9], **params)
    driver.finish(20, chunk=16)
    assert resumed.output == whole


def test_a_partial_extend_yields_nothing_and_the_last_one_a_token(model_folder: Folder) -> None:
    driver = Driver(core_of(model_folder("llama")))
    driver.open(0, prompt_of(20, 1))
    assert driver.run({0: 16}).yields == b"\0"
    assert driver.run({0: 4}).yields == b"\1"
    assert driver.run({0: 0}).yields == b"\1"


def test_prefill_only_draws_nothing(model_folder: Folder) -> None:
    driver = Driver(core_of(model_folder("llama")))
    driver.open(0, prompt_of(8, 1), max_tokens=0)
    assert driver.run({0: 8}).yields == b"\0"


def test_committed_pages_are_read_not_computed(model_folder: Folder) -> None:
    """A second sequence starts on the first one's page: what the radix tree does with a shared prefix."""
    folder, prompt = model_folder("llama"), prompt_of(20, 1)
    expected = alone(core_of(folder), prompt, 6)
    driver = Driver(core_of(folder))
    driver.open(0, prompt[:16] + prompt_of(5, 9))
    driver.run({0: 21})
    shared = driver.held[0][:1]
    sequence = driver.open(1, prompt)
    driver.opens[-1] = msgspec.structs.replace(driver.opens[-1], committed=16, pages=pack_ids(shared))
    driver.held[1], sequence.committed = list(shared), 16
    driver.run({0: 0, 1: 4})
    driver.finish(6)
    assert sequence.output[:6] == expected


def test_a_slot_is_closed_and_reopened_by_one_plan(model_folder: Folder) -> None:
    folder = model_folder("llama")
    driver = Driver(core_of(folder))
    driver.open(0, prompt_of(30, 1), repetition_penalty=2.0)
    driver.run({0: 30})
    driver.close(0)
    sequence = driver.open(0, prompt_of(12, 2))
    driver.finish(5)
    assert sequence.output == alone(core_of(folder), prompt_of(12, 2), 5)


def test_plans_queued_ahead_need_no_tokens_from_results(model_folder: Folder) -> None:
    """Three plans are written before the first is carried out: they take effect each at its own turn."""
    folder, prompt = model_folder("llama"), prompt_of(10, 4)
    driver = Driver(core_of(folder))
    driver.open(0, prompt)
    plans = [driver.plan({0: 10}), driver.plan({0: 0}), driver.plan({0: 0})]
    results = [driver.core.execute(plan) for plan in plans]
    assert [unpack_ids(result.ids)[0] for result in results] == alone(core_of(folder), prompt, 3)


def test_min_tokens_forbids_end_and_stop_tokens(model_folder: Folder) -> None:
    folder, prompt = model_folder("llama"), prompt_of(10, 4)
    first = alone(core_of(folder), prompt, 4, logit_bias=((5, 100.0), (8, 90.0)), stop_token_ids=(8,), min_tokens=3)
    assert first[3] == 5
    assert not {5, 8} & set(first[:3])


def test_output_logprobs_belong_to_the_tokens(model_folder: Folder) -> None:
    folder, prompt = model_folder("llama"), prompt_of(10, 4)
    driver = Driver(core_of(folder))
    plain, scored = driver.open(0, prompt), driver.open(1, prompt, logprobs=3)
    driver.open(2, prompt, logprobs=0)
    driver.finish(4)
    assert plain.logprobs == []
    assert [unpack_ids(entry.ids)[0] for entry in scored.logprobs] == scored.output == plain.output
    assert [entry.start for entry in scored.logprobs] == [10, 11, 12, 13]
    for entry in scored.logprobs:
        assert (entry.prompt, entry.top) == (False, 3)
        assert unpack_ids(entry.top_ids)[0] == unpack_ids(entry.ids)[0]
        assert unpack_floats(entry.top_logprobs)[0] == unpack_floats(entry.logprobs)[0] < 0
    assert driver.live[2].logprobs[0].top_ids == b""


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("start", [0, 12])
def test_prompt_logprobs_are_complete_over_any_chunks(model_folder: Folder, chunk: int, start: int) -> None:
    folder, prompt = model_folder("qwen2"), prompt_of(30, 4)
    driver = Driver(core_of(folder))
    sequence = driver.open(0, prompt, [1, 2], prompt_logprobs=1, logprob_start=start)
    driver.finish(4, chunk)
    with torch.inference_mode():
        expected = load_reference(folder)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    positions: list[int] = []
    values: list[float] = []
    ids: list[int] = []
    for entry in sequence.logprobs:
        assert entry.prompt
        ids += unpack_ids(entry.ids)
        positions += range(entry.start, entry.start + len(entry.ids) // 4)
        values += unpack_floats(entry.logprobs)
    assert positions == list(range(start, 30))
    assert ids == prompt[start:]
    if start == 0:  # nothing predicts the first token
        assert np.isnan(values.pop(0))
        positions.pop(0)
    assert values == pytest.approx([float(expected[i - 1, prompt[i]]) for i in positions], abs=1e-4)


def test_the_only_prompt_token_has_no_logprob(model_folder: Folder) -> None:
    driver = Driver(core_of(model_folder("qwen2")))
    sequence = driver.open(0, [9], prompt_logprobs=2)
    driver.finish(1)
    (entry,) = sequence.logprobs
    assert (entry.start, entry.top, len(entry.top_ids)) == (0, 2, 8)
    assert list(unpack_ids(entry.ids)) == [9]
    assert np.isnan(unpack_floats(entry.logprobs)).all()


def test_a_row_that_is_not_a_number_fails_alone(model_folder: Folder) -> None:
    """NaN in one sequence's KV: it fails, its neighbours and the next owner of its pages don't."""
    folder, prompt = model_folder("llama"), prompt_of(20, 1)
    core = core_of(folder, tokens=96)
    driver = Driver(core)
    healthy, broken = driver.open(0, prompt), driver.open(1, prompt)
    driver.run({0: 20, 1: 20})
    core.runner._compute._pool.values[1][driver.held[1]] = float("nan")  # type: ignore[attr-defined]
    driver.finish(6)
    assert healthy.output == alone(core_of(folder), prompt, 6)
    assert broken.failure is not None
    assert broken.failure.code == "nan"
    assert len(broken.output) == 1
    assert driver.run({1: 0}).failures == ()
    driver.close(1)
    after = driver.open(2, prompt)
    driver.finish(6)
    assert after.output == healthy.output


def good_open(slot: int = 0, **changes: Any) -> SlotOpen:
    opened = SlotOpen(slot, 1, 0, pack_ids(range(20)), 20, 0, pack_ids([0, 1]), SamplingParams(4), 1)
    return msgspec.structs.replace(opened, **changes)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown slot": ({"opens": (good_open(16),)}, "no slot 16"),
    "open twice": ({"opens": (good_open(), good_open())}, "while it is live"),
    "no tokens": ({"opens": (good_open(ids=b""),)}, "0 tokens"),
    "too long": ({"opens": (good_open(ids=pack_ids([1] * 513)),)}, "513 tokens"),
    "token beyond vocabulary": ({"opens": (good_open(ids=pack_ids([VOCAB] * 20)),)}, f"token {VOCAB}"),
    "committed beyond tokens": ({"opens": (good_open(committed=21),)}, "counts beyond"),
    "page beyond pool": ({"opens": (good_open(pages=pack_ids([128])),)}, "page 128"),
    "row of empty slot": ({"rows": pack_ids([3]), "counts": pack_ids([0])}, "not live"),
    "row beyond slots": ({"rows": pack_ids([99]), "counts": pack_ids([0])}, "no slot 99"),
    "row twice": ({"opens": (good_open(),), "rows": pack_ids([0, 0]), "counts": pack_ids([2, 2])}, "distinct"),
    "extend too far": ({"opens": (good_open(),), "rows": pack_ids([0]), "counts": pack_ids([21])}, "more tokens"),
    "gap": ({"opens": (good_open(),), "rows": pack_ids([0]), "counts": pack_ids([0])}, "gap"),
    "pages missing": (
        {"opens": (good_open(pages=pack_ids([0])),), "rows": pack_ids([0]), "counts": pack_ids([20])}, "pages",
    ),
    "page of empty slot": ({"page_slots": pack_ids([2]), "page_ids": pack_ids([1])}, "empty"),
    "grammar without engine": ({"opens": (good_open(grammar=("d", "e", "k", "s")),)}, "no grammar engine"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_plan_that_does_not_fit_is_refused(model_folder: Folder, case: str) -> None:
    core = core_of(model_folder("llama"))
    fields, message = BAD[case]
    with pytest.raises(BadPlan, match=message):
        core.execute(Plan(**{"step": 1, "rows": b"", "counts": b"", **fields}))
    core.reset()
    assert core.live == 0
    assert alone(core, prompt_of(8, 1), 3)
