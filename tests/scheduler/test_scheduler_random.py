"""Seeded random mixes of everything: the outputs are what the model says, whatever else runs, and nothing is left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phloem_proto.messages import End, SamplingParams
from phloem_scheduler.settings import Settings

from .fake_worker import FakeWorker, expected, profile
from .world import World


class Mix:
    """Opens, cancels, re-routes, loses workers and fails steps at random; knows what must come out."""

    def __init__(self, seed: int, depth: int, faults: bool) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        pages = self.rng.choice([14, 30, 80, 300])
        self.page_size = self.rng.choice([1, 4, 16])
        self.shape = profile(
            pages=pages, page_size=self.page_size, slots=self.rng.choice([1, 3, 8]), max_step_tokens=128
        )
        settings = Settings(
            chunk_tokens=self.rng.choice([8, 16, 40]),
            depth=depth,
            reuse=self.rng.random() < 0.9,
            max_queued=1000,
            worker_wait_s=1e9,
        )
        self.world = World(settings, self.shape, workers=self.rng.choice([1, 1, 2]), late=self.rng.choice([0.0, 0.2]))
        self.live: dict[bytes, dict[str, Any]] = {}
        self.all: list[bytes] = []
        if self.rng.random() < 0.5:
            self.world.core.planner.reserve.share = 0.0

    def open(self) -> None:
        rng = self.rng
        most = max(2, min(60, self.shape.pages * self.page_size // 2))
        prompt = [rng.randrange(2) + 1 if at % 5 == 0 else 3 for at in range(rng.randrange(1, most))]
        fields: dict[str, Any] = {
            "n": rng.choice([1, 1, 1, 3]),
            "seed": rng.randrange(5),
            "temperature": rng.choice([0.0, 1.0]),
            "max_tokens": rng.choice([0, 1, 5, 20]),
            "ignore_eos": rng.random() < 0.5,
            "stop_token_ids": rng.choice([(), (7,)]),
            "salt": rng.choice(["", "", "x"]),
            "min_tokens": rng.choice([0, 2]),
        }
        rid = self.world.open(prompt, **fields)
        self.live[rid] = {"prompt": prompt, "attempt": 1, **fields}
        self.all.append(rid)

    def cancel(self) -> None:
        if self.live:
            rid = self.rng.choice(list(self.live))
            request = self.live.pop(rid)
            if all((rid, child) in self.world.ends for child in range(request["n"])):
                self.check(rid, request)
            self.world.cancel(rid, request["attempt"])

    def again(self) -> None:
        """A gateway opens a live request again with what it holds: resume or re-route."""
        if not self.live:
            return
        rid = self.rng.choice(list(self.live))
        request = self.live[rid]
        request["attempt"] += 1
        fields = {name: value for name, value in request.items() if name not in ("prompt", "attempt")}
        have = tuple(self.world.hold(rid, child, (rid, child) in self.world.ends) for child in range(request["n"]))
        self.world.open(request["prompt"], rid=rid, attempt=request["attempt"], have=have, **fields)

    def lose_worker(self) -> None:
        name = self.rng.choice(list(self.world.workers))
        self.world.core.worker_gone(name)
        self.world.core.check()
        self.world.join(name, FakeWorker(self.shape, seed=self.rng.randrange(99), late=0.1))

    def fail_step(self) -> None:
        name = self.rng.choice(list(self.world.workers))
        if self.world.plans[name] and self.rng.random() < 0.5:
            self.world.core.step_failed(name, self.world.plans[name][0].step, "boom")

    def run(self, steps: int) -> None:
        moves = [self.open, self.open, self.cancel, self.again] + [self.lose_worker, self.fail_step] * self.faults
        for _ in range(steps):
            if self.rng.random() < 0.3:
                self.rng.choice(moves)()
            self.world.now += 0.01
            self.world.turn()
            for name in self.world.workers:
                if self.rng.random() < 0.8:
                    self.world.step(name)
        self.world.finish()
        for rid, request in self.live.items():
            self.check(rid, request)
            self.world.cancel(rid, request["attempt"])
        self.world.finish()
        self.world.assert_empty()

    def check(self, rid: bytes, request: dict[str, Any]) -> None:
        names = ("max_tokens", "temperature", "ignore_eos", "stop_token_ids", "min_tokens")
        capacity = self.shape.pages * self.page_size - len(request["prompt"])
        params = SamplingParams(
            **{name: request[name] for name in names} | {"max_tokens": min(request["max_tokens"], capacity)}
        )
        for child in range(request["n"]):
            if self.faults and self.world.ends[rid, child].code == "internal":
                continue  # a request in three failed steps is given up
            wanted = expected(request["prompt"], params, seed=request["seed"], child=child)
            got = self.world.outputs.get((rid, child), []), self.world.ends[rid, child]
            assert got == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_random_mixes_yield_what_the_model_says(seed: int, depth: int) -> None:
    Mix(seed, depth, faults=False).run(150)


@pytest.mark.parametrize("seed", range(12))
def test_random_mixes_with_failing_steps_and_lost_workers(seed: int) -> None:
    Mix(1000 + seed, 1 + seed % 3, faults=True).run(150)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_random_mixes_at_length(seed: int) -> None:
    Mix(5000 + seed, 1 + seed % 3, faults=seed % 2 == 1).run(600)


def test_equal_calls_give_equal_actions() -> None:
    def trace() -> list[object]:
        mix = Mix(77, 2, faults=True)
        mix.run(100)
        return [mix.world.sent, mix.world.frames]

    assert trace() == trace()


def test_every_end_comes_once() -> None:
    mix = Mix(5, 2, faults=True)
    mix.run(150)
    ended = [(frame.rid, frame.child) for frame in mix.world.frames if frame.end is not None]
    assert len(ended) == len(set(ended))
    assert all(isinstance(end, End) for end in mix.world.ends.values())
