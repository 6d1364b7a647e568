"""The scheduler's core over a worker's: sampled requests give the same tokens whether or not rows have to give way."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phloem_proto.messages import End, Plan, Result, WorkerProfile
from phloem_scheduler.settings import Settings
from tests.scheduler.world import World

from .cores import EOS, core_of
from .tiny_models import VOCAB

Folder = Callable[[str], Path]
Outputs = dict[tuple[bytes, int], tuple[list[int], End]]

WAVES = 6
KINDS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.05, "n": 2},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    {"min_tokens": 10, "stop_token_ids": tuple(range(40, 50))},
]


class Worker:
    """A worker's core in the place of a fake worker."""

    def __init__(self, folder: Path, page_size: int, tokens: int) -> None:
        self.core = core_of(folder, page_size=page_size, tokens=tokens)
        held = self.core.runner.capacity
        self.shape = WorkerProfile(page_size, held.pages, 16, 512, 512, VOCAB, EOS, "float32", "cpu")

    def reset(self) -> None:
        self.core.reset()

    def run(self, plan: Plan) -> Result:
        return self.core.execute(plan)


def wave(rng: random.Random) -> list[tuple[list[int], dict[str, Any]]]:
    """One request of each kind; some begin alike."""
    shared = [rng.randrange(10, VOCAB) for _ in range(16)]
    asked = []
    for kind in KINDS:
        own = [rng.randrange(10, VOCAB) for _ in range(rng.randint(4, 24))]
        prompt = shared + own if rng.random() < 0.5 else own
        params = {"temperature": 0.9, "seed": rng.getrandbits(63), "max_tokens": rng.randint(30, 60), **kind}
        asked.append((prompt, params))
    return asked


def play(folder: Path, page_size: int, tokens: int, depth: int) -> tuple[Outputs, int]:
    """Serve waves of requests one after the other. Returns what each choice became, and how many rows were retracted."""
    world = World(Settings(chunk_tokens=48, depth=depth, reserve=0.0), workers=0)
    world.join("w0", Worker(folder, page_size, tokens))  # type: ignore[arg-type]
    rng = random.Random(3)
    for _ in range(WAVES):
        for prompt, params in wave(rng):
            world.open(prompt, **params)
        world.finish()
    return {key: (ids, world.ends[key]) for key, ids in world.outputs.items()}, world.core.counters.retractions


@pytest.fixture(scope="module")
def ample(model_folder: Folder) -> Outputs:
    outputs, retractions = play(model_folder("qwen3"), 16, 8192, 1)
    assert (len(outputs), retractions) == (WAVES * (len(KINDS) + 1), 0)
    return outputs


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("page_size", [1, 16])
def test_sampled_tokens_are_the_same_when_rows_give_way(
    model_folder: Folder, ample: Outputs, page_size: int, depth: int
) -> None:
    outputs, retractions = play(model_folder("qwen3"), page_size, 144, depth)
    assert retractions >= WAVES
    assert outputs == ample
