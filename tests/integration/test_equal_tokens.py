"""The same greedy tokens as `transformers`, whatever the batch, cache, chunk, page, pool or bus.

Six settings cover every pair of values of (chunk, page, pool, bus) on the tiny model, one of them runs on the default model as well; within
each, prompts run alone and 16 at a time, with a cold and a warm cache. ``--long`` runs all sixteen on the default model.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.integration.harness import Running, complete, gauge, nothing_held, phloem
from tests.integration.reference import Greedy, first_real_difference, load_or_compute

AMPLE, SMALL = 16_384, 160
Setting = tuple[int, int, int, str]
PAIRWISE: list[Setting] = [
    (16, 1, AMPLE, "serve"),
    (16, 16, SMALL, "up"),
    (512, 1, SMALL, "serve"),
    (512, 16, AMPLE, "up"),
    (512, 1, AMPLE, "up"),
    (16, 16, SMALL, "serve"),
]
EVERY: list[Setting] = list(itertools.product((16, 512), (1, 16), (AMPLE, SMALL), ("serve", "up")))

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def tokens_of(running: Running, expected: list[Greedy]) -> list[list[int]]:
    """Ask for all of them in one call, so that they arrive together."""
    sampling = {"temperature": 0, "max_new_tokens": len(expected[0].tokens), "ignore_eos": True}
    replies = complete(running, input_ids=[item.prompt for item in expected], sampling_params=sampling)
    return [[int(i) for i in reply["output_ids"]] for reply in replies]


def check(running: Running, expected: list[Greedy], at_once: int) -> None:
    for start in range(0, len(expected), at_once):
        asked = expected[start : start + at_once]
        for item, answer in zip(asked, tokens_of(running, asked), strict=True):
            assert first_real_difference(item, answer) is None, (item.tokens, answer)


def check_until_retracted(running: Running, expected: list[Greedy]) -> None:
    """Whether rows meet in the pool depends on when they arrive; ask again, a few times, until some had to give way."""
    for _ in range(12):
        nothing_held(running)  # the scheduler's beat with the count has come by then
        if gauge(running, "phloem_scheduler_retractions_total") > 0:
            return
        check(running, expected, at_once=16)
    raise AssertionError("nothing was ever retracted")


def sweep(model: str, setting: Setting, folder: Path) -> None:
    greedy = load_or_compute(model, folder)
    chunk, page, kv_tokens, way = setting
    environment = {
        "PHLOEM_DTYPE": "float32",
        "PHLOEM_THREADS": "1" if model == "tiny" else "0",  # a second thread of so small a model is only waited for
        "PHLOEM_CHUNK_TOKENS": str(chunk),
        "PHLOEM_PAGE_SIZE": str(page),
        "PHLOEM_KV_TOKENS": str(kv_tokens),
        "PHLOEM_RESERVE": "0" if kv_tokens == SMALL else "0.7",
    }
    with phloem(way, "--model", model, env=environment) as running:
        if EVERY.index(setting) % 2:
            check(running, greedy[:2], at_once=1)  # cold and alone, then warm among others
            check(running, greedy, at_once=16)
        else:
            check(running, greedy, at_once=16)
            check(running, greedy[:2], at_once=1)
        if kv_tokens == SMALL:
            check_until_retracted(running, greedy)


@pytest.mark.parametrize("setting", PAIRWISE, ids=str)
def test_tokens_equal_transformers_pairwise(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> None:
    sweep("tiny", setting, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("setting", [PAIRWISE[3]], ids=str)
def test_tokens_of_the_default_model_equal_transformers(
    setting: Setting, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sweep("smollm2", setting, tmp_path_factory.getbasetemp())


@pytest.mark.long
@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_tokens_equal_transformers_everywhere(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> None:
    sweep("smollm2", setting, tmp_path_factory.getbasetemp())
