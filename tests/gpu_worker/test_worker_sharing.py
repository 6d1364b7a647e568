"""Rows that read KV pages which another row writes in the same forward pass, or in a plan that is still under way."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from phloem_gpu_worker.attention import AttentionBackend, ReferenceAttention
from phloem_gpu_worker.attention_torch import TorchAttention
from phloem_gpu_worker.compute import TorchCompute
from phloem_gpu_worker.core import Limits, WorkerCore
from phloem_gpu_worker.launched import Launched
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.stand_in import StandInRunner
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Plan, Result, SamplingParams, SlotOpen

from .cores import EOS
from .tiny_models import VOCAB

Folder = Callable[[str], Path]
STEPS = 5
PAGE_ROOM = 8
"""Pages beside those of the prompt, for what is drawn."""


@dataclass(frozen=True)
class Asked:
    """A request, and how many of its first tokens lie in pages that others compute."""

    ids: list[int]
    shared: int = 0
    temperature: float = 0.0


def family(page_size: int) -> list[Asked]:
    """A leader of eight pages and a bit; two that begin with its pages, one of them with a single token of its own; and one that goes on
    from the second's page, so that it reads what two rows write."""
    rng = random.Random(page_size)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, VOCAB) for _ in range(count)]

    whole = 8 * page_size
    leader = Asked(tokens(whole + 3))
    short = Asked(leader.ids[:whole] + tokens(1), whole, 0.9)
    long = Asked(leader.ids[:whole] + tokens(2 * page_size + 1), whole)
    last = Asked(long.ids[: whole + page_size] + tokens(5), whole + page_size, 0.9)
    return [leader, short, long, last]


class Recorder:
    """A runner that keeps the logits of each forward pass."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.logits: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: Any) -> Any:
        forward = self._runner.forward(batch)
        self.logits.append(forward.logits.clone())
        return forward


def core_over(
    folder: Path, page_size: int, dtype: torch.dtype = torch.float32, attention: AttentionBackend | None = None
) -> WorkerCore:
    """A core whose pool is full of large numbers, so that whoever reads what is not written yet draws something else."""
    decoder = load_decoder(folder, dtype, torch.device("cpu"))
    runner = make_runner(decoder, PoolSize(page_size, 64 * page_size), attention)
    assert isinstance(runner._compute, TorchCompute)
    pool = runner._compute._pool
    for pages in (*pool.keys, *pool.values):
        pages[:-1] = 1e4
    return WorkerCore(Recorder(runner), Limits(slots=8), EOS, 512, None)


def tables(asked: list[Asked], page_size: int) -> list[list[int]]:
    """Page tables in which each request begins with the pages of the one that computes them."""
    free = iter(range(63, -1, -1))
    made: list[list[int]] = []
    for one in asked:
        table: list[int] = []
        for owner, other in zip(made, asked, strict=False):
            both = min(one.shared, len(other.ids)) // page_size
            if one.ids[: both * page_size] == other.ids[: both * page_size] and both > len(table):
                table = owner[:both]
        assert len(table) * page_size == one.shared
        made.append(table + [next(free) for _ in range(-(-len(one.ids) // page_size) + PAGE_ROOM - len(table))])
    return made


def open_of(slot: int, one: Asked, table: list[int], committed: int) -> SlotOpen:
    params = SamplingParams(100, temperature=one.temperature)
    return SlotOpen(slot, 1, 0, pack_ids(one.ids), len(one.ids), committed, pack_ids(table), params, 17 + len(one.ids))


def alone(make: Callable[[], WorkerCore], one: Asked, page_size: int) -> tuple[list[int], list[Tensor]]:
    """Tokens and logits of a request that computes everything itself."""
    core = make()
    (table,) = tables([Asked(one.ids)], page_size)
    plans = [Plan(1, pack_ids([0]), pack_ids([len(one.ids)]), opens=(open_of(0, one, table, 0),))]
    plans += [Plan(step, pack_ids([0]), pack_ids([0])) for step in range(2, STEPS + 1)]
    ids = [unpack_ids(core.execute(plan).ids)[0] for plan in plans]
    return ids, [logits[0] for logits in core.runner.logits] if isinstance(core.runner, Recorder) else []


def in_one_plan(asked: list[Asked], order: list[int], page_size: int) -> list[Plan]:
    """All requests enter with the first plan, its rows in this order."""
    opens = [
        open_of(slot, one, table, one.shared)
        for slot, (one, table) in enumerate(zip(asked, tables(asked, page_size), strict=True))
    ]
    counts = [len(asked[slot].ids) - asked[slot].shared for slot in order]
    first = Plan(1, pack_ids(order), pack_ids(counts), opens=tuple(opens[slot] for slot in order))
    return [first, *(Plan(step, pack_ids(order), pack_ids([0] * len(order))) for step in range(2, STEPS + 1))]


ORDERS = {"leader first": [0, 1, 2, 3], "leader last": [3, 2, 1, 0], "leader between": [1, 3, 0, 2]}
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"torch": TorchAttention, "reference": ReferenceAttention}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen3"])
def test_rows_read_what_others_write_in_the_same_pass(
    model_folder: Folder, name: str, order: str, page_size: int
) -> None:
    """Computed in float64, so that rounding can't hide or feign a difference in the float32 logits: they are equal bit for bit."""

    def make() -> WorkerCore:
        return core_over(model_folder(name), page_size, torch.float64)

    asked, rows = family(page_size), ORDERS[order]
    core = make()
    results = [core.execute(plan) for plan in in_one_plan(asked, rows, page_size)]
    assert isinstance(core.runner, Recorder)
    for place, slot in enumerate(rows):
        ids, logits = alone(make, asked[slot], page_size)
        assert [unpack_ids(result.ids)[place] for result in results] == ids
        assert torch.equal(torch.stack([step[place] for step in core.runner.logits]), torch.stack(logits))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_rows_give_the_same_tokens_in_float32(
    model_folder: Folder, backend: str, order: str, page_size: int
) -> None:
    def make() -> WorkerCore:
        return core_over(model_folder("qwen3"), page_size, attention=BACKENDS[backend]())

    asked, rows = family(page_size), ORDERS[order]
    core = make()
    results = [core.execute(plan) for plan in in_one_plan(asked, rows, page_size)]
    assert isinstance(core.runner, Recorder)
    for place, slot in enumerate(rows):
        ids, logits = alone(make, asked[slot], page_size)
        assert [unpack_ids(result.ids)[place] for result in results] == ids
        assert torch.allclose(torch.stack([step[place] for step in core.runner.logits]), torch.stack(logits), atol=1e-4)


def test_shared_rows_give_the_same_tokens_on_the_stand_in() -> None:
    def make() -> WorkerCore:
        return WorkerCore(StandInRunner(0.0, pages=64, vocab_size=VOCAB), Limits(slots=8), EOS, 512, None)

    asked, rows = family(16), ORDERS["leader last"]
    core = make()
    results = [core.execute(plan) for plan in in_one_plan(asked, rows, 16)]
    for place, slot in enumerate(rows):
        assert [unpack_ids(result.ids)[place] for result in results] == alone(make, asked[slot], 16)[0]


def under_way(core: WorkerCore, plans: list[Plan], depth: int) -> list[Result]:
    """Carry plans out with ``depth`` of them begun before the first is finished."""
    results: list[Result] = []
    launched: deque[Launched] = deque()
    for plan in plans:
        if len(launched) == depth:
            results.append(core.finish(launched.popleft()))
        assert core.may_begin(plan)
        launched.append(core.begin(plan))
    return results + [core.finish(step) for step in launched]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("page_size", [1, 16])
def test_rows_read_what_plans_under_way_write(model_folder: Folder, page_size: int, depth: int) -> None:
    """The leader's prompt takes two plans; one request enters with the second, the others with the third, before any is finished."""

    def make() -> WorkerCore:
        return core_over(model_folder("llama"), page_size, torch.float64)

    asked = family(page_size)
    opens = [
        open_of(slot, one, table, one.shared)
        for slot, (one, table) in enumerate(zip(asked, tables(asked, page_size), strict=True))
    ]
    own = [len(one.ids) - one.shared for one in asked]
    half = 4 * page_size
    plans = [
        Plan(1, pack_ids([0]), pack_ids([half]), opens=(opens[0],)),
        Plan(2, pack_ids([2, 0]), pack_ids([own[2], own[0] - half]), opens=(opens[2],)),
        Plan(3, pack_ids([3, 1, 0, 2]), pack_ids([own[3], own[1], 0, 0]), opens=(opens[3], opens[1])),
    ]
    plans += [Plan(step, pack_ids(range(4)), pack_ids([0] * 4)) for step in range(4, STEPS + 3)]
    drawn: dict[int, list[int]] = {slot: [] for slot in range(4)}
    for plan, result in zip(plans, under_way(make(), plans, depth), strict=True):
        ids = iter(unpack_ids(result.ids))
        for slot, yielded in zip(unpack_ids(plan.rows), result.yields, strict=True):
            drawn[slot] += [next(ids)] if yielded else []
    for slot, one in enumerate(asked):
        assert drawn[slot][:STEPS] == alone(make, one, page_size)[0]
