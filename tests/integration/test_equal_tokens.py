"""The same greedy tokens as `transformers`, whatever the batch, cache, chunk, page, pool or bus.

Six settings cover every pair of values of (chunk, page, pool, bus); within each, prompts run alone and 16 at a time, with a cold and a warm
cache. ``--long`` runs all sixteen settings.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.harness import Running, complete, gauge, phloem
from tests.integration.reference import NEW_TOKENS, Greedy, first_real_difference, load_or_compute

AMPLE, SMALL = 16_384, 160
PAIRWISE = [
    (16, 1, AMPLE, "serve"),
    (16, 16, SMALL, "up"),
    (512, 1, SMALL, "serve"),
    (512, 16, AMPLE, "up"),
    (512, 1, AMPLE, "up"),
    (16, 16, SMALL, "serve"),
]
REST = [s for s in itertools.product((16, 512), (1, 16), (AMPLE, SMALL), ("serve", "up")) if s not in PAIRWISE]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> list[Greedy]:
    return load_or_compute(tmp_path_factory.getbasetemp())


def tokens_of(running: Running, prompt: list[int]) -> list[int]:
    reply = complete(
        running, input_ids=prompt, sampling_params={"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    )
    return [int(i) for i in reply["output_ids"]]


def check(running: Running, expected: list[Greedy], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda item: tokens_of(running, item.prompt), expected))
    wrong = {
        index: (position, item.tokens, answer)
        for index, (item, answer) in enumerate(zip(expected, answers, strict=True))
        if (position := first_real_difference(item, answer)) is not None
    }
    assert not wrong


def sweep(setting: tuple[int, int, int, str], greedy: list[Greedy]) -> None:
    chunk, page, kv_tokens, way = setting
    environment = {
        "PHLOEM_DTYPE": "float32",
        "PHLOEM_CHUNK_TOKENS": str(chunk),
        "PHLOEM_PAGE_SIZE": str(page),
        "PHLOEM_KV_TOKENS": str(kv_tokens),
        "PHLOEM_RESERVE": "0" if kv_tokens == SMALL else "0.7",
    }
    with phloem(way, "--model", "smollm2", env=environment) as running:
        if PAIRWISE.index(setting) % 2 if setting in PAIRWISE else page == 1:
            check(running, greedy[:2], at_once=1)  # cold and alone, then warm among others
            check(running, greedy, at_once=16)
        else:
            check(running, greedy, at_once=16)
            check(running, greedy[:2], at_once=1)
        if kv_tokens == SMALL:
            assert gauge(running, "phloem_scheduler_retractions_total") > 0


@pytest.mark.parametrize("setting", PAIRWISE, ids=str)
def test_tokens_equal_transformers_pairwise(setting: tuple[int, int, int, str], greedy: list[Greedy]) -> None:
    sweep(setting, greedy)


@pytest.mark.long
@pytest.mark.parametrize("setting", REST, ids=str)
def test_tokens_equal_transformers_everywhere(setting: tuple[int, int, int, str], greedy: list[Greedy]) -> None:
    sweep(setting, greedy)
