"""Launching ahead: plans begin while the step before is unread, and everything comes out as if each had been carried out alone."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from phloem_gpu_worker.burner import Burner
from phloem_gpu_worker.core import Limits, WorkerCore
from phloem_gpu_worker.grammar_desk import GrammarDesk
from phloem_gpu_worker.launched import Launched
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.pipeline import Done, Emptied, Order, Pipeline, Reset, Turn
from phloem_gpu_worker.runner import Finished, TorchRunner
from phloem_gpu_worker.stand_in import StandInRunner, next_token
from phloem_proto.codec import pack_ids, unpack_floats, unpack_ids
from phloem_proto.messages import Grammar, Plan, Result, SamplingParams, SlotOpen, StepFailed

from .cores import EOS, core_of, desk_of
from .driver import Driver
from .matchers import ANY, Later, Scripted

Folder = Callable[[str], Path]


def ahead(core: WorkerCore, plans: list[Plan]) -> list[Result]:
    """Carry out plans with two launched wherever the core allows it."""
    results: list[Result] = []
    launched: deque[Launched] = deque()

    def finish() -> None:
        results.append(core.finish(launched.popleft()))
        if launched and not launched[0].drawn:
            core.draw(launched[0])

    for plan in plans:
        while len(launched) == 2 or not core.may_begin(plan):
            finish()
        launched.append(core.begin(plan))
    while launched:
        finish()
    return results


def told(results: list[Result]) -> list[Result]:
    """Results without the times, and with logprobs without their values."""
    return [
        msgspec.structs.replace(
            result, forward_ms=0.0, idle_ms=0.0, mask_ms=0.0,
            logprobs=tuple(msgspec.structs.replace(entry, logprobs=b"", top_logprobs=b"") for entry in result.logprobs),
        )
        for result in results
    ]  # fmt: skip


def logprobs_of(results: list[Result]) -> list[float]:
    return [value for result in results for entry in result.logprobs for value in unpack_floats(entry.logprobs)]


def same_either_way(make: Callable[[], WorkerCore], plans: list[Plan]) -> list[Result]:
    """What the plans yield, the same one at a time and ahead: logprobs up to rounding, since a row that can't know yet that its grammar has
    ended runs along."""
    core = make()
    alone, together = [core.execute(plan) for plan in plans], ahead(make(), plans)
    assert told(together) == told(alone)
    assert logprobs_of(together) == pytest.approx(logprobs_of(alone), abs=1e-4, nan_ok=True)
    return together


def ids_of(results: list[Result], row: int = 0) -> list[int]:
    """The tokens that a row of each of these results yields, where it yields any."""
    return [
        unpack_ids(result.ids)[sum(result.yields[:row])]
        for result in results
        if row < len(result.yields) and result.yields[row]
    ]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_p": 0.8, "min_p": 0.01},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5},
    {"temperature": 1.0, "presence_penalty": 1.0, "logprobs": 1},
    {"logit_bias": ((7, 2.0),), "min_tokens": 5},
    {"prompt_logprobs": 1, "logprobs": 0},
]


class Planner:
    """Writes plans as a scheduler does that never waits for values, with seeded arrivals, chunks, pauses, ends and reuse of slots."""

    def __init__(self, core: WorkerCore, seed: int, grammar: bool) -> None:
        self.driver = Driver(core)
        self.rng = random.Random(seed)
        self.grammar = grammar

    def plans(self, count: int) -> list[Plan]:
        return [self._plan() for _ in range(count)]

    def _plan(self) -> Plan:
        rng, driver = self.rng, self.driver
        for slot in list(driver.live):
            if rng.random() < 0.12:
                driver.close(slot)
        for slot in range(6):
            if slot not in driver.live and rng.random() < 0.4:
                self._open(slot)
        rows: dict[int, int] = {}
        for slot in rng.sample(sorted(driver.live), len(driver.live)):
            sequence = driver.live[slot]
            known = len(sequence.ids) - sequence.committed
            if rng.random() < 0.85:
                fresh = sequence.committed < sequence.prompt
                rows[slot] = rng.randint(1, known) if fresh else 0
        plan = driver.plan(rows)
        for slot, count in rows.items():  # a placeholder for each token: only how many there are is known here
            sequence = driver.live[slot]
            sequence.committed = sequence.committed + count if count else len(sequence.ids)
            if sequence.committed == len(sequence.ids):
                sequence.ids.append(0)
        return plan

    def _open(self, slot: int) -> None:
        rng = self.rng
        prompt = [rng.randrange(10, 300) for _ in range(rng.randint(1, 24))]
        constrained = self.grammar and rng.random() < 0.5
        params = rng.choice(SETTINGS)
        self.driver.open(
            slot, prompt, seed=rng.getrandbits(40), grammar=ANY if constrained else None,
            **({} if constrained else params),
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("grammar", [False, True])
def test_any_plans_yield_the_same_launched_ahead(model_folder: Folder, seed: int, grammar: bool) -> None:
    def make() -> WorkerCore:
        desk = desk_of(lambda _: Scripted([9, 8, 7, 6] * 3)) if grammar else None
        return core_of(model_folder("llama"), page_size=4, tokens=2048, desk=desk)

    results = same_either_way(make, Planner(make(), seed, grammar).plans(60))
    assert sum(len(result.ids) // 4 for result in results) > 60
    assert not any(result.failures for result in results)


def test_decoding_really_is_launched_ahead(model_folder: Folder) -> None:
    """Two plans are on the device before anything of the first is read, and the second has the first's token."""
    driver = Driver(core_of(model_folder("llama")))
    driver.open(0, [1, 2, 3])
    plans = [driver.plan({0: 3}), *(driver.plan({0: 0}) for _ in range(2))]
    core = driver.core
    first = core.begin(plans[0])
    assert core.may_begin(plans[1])
    second = core.begin(plans[1])
    assert core.slots.tokens[0, 3:5].tolist() == [-1, -1]
    results = [core.finish(first), core.finish(second), core.execute(plans[2])]
    assert core.slots.tokens[0, 3:6].tolist() == ids_of(results)
    assert core.slots.unread[0] == 0


@pytest.mark.parametrize("reopen", [False, True])
def test_a_slot_closed_by_the_next_plan_still_yields_its_token(model_folder: Folder, reopen: bool) -> None:
    """Cancelled, and taken by another sequence at once, while its token is unread."""

    def make() -> WorkerCore:
        return core_of(model_folder("qwen3"))

    driver = Driver(make())
    driver.open(0, [1, 2, 3, 4], temperature=1.0, repetition_penalty=2.0, logprobs=2)
    driver.open(1, [5, 6])
    plans = [driver.plan({0: 4, 1: 2}), driver.plan({0: 0, 1: 0})]
    driver.close(0)
    if reopen:
        driver.open(0, [200, 201], seed=5, temperature=1.0, presence_penalty=1.0)
        plans += [driver.plan({0: 2, 1: 0}), driver.plan({1: 0, 0: 0}), driver.plan({0: 0})]
    else:
        plans += [driver.plan({1: 0}), driver.plan({})]
    results = same_either_way(make, plans)
    assert [list(result.yields) for result in results[:3]] == [[1, 1], [1, 1], [1, 1][: len(results[2].yields)]]
    assert results[1].logprobs[0].ids == results[1].ids[:4]


class Ahead:
    """A `TorchRunner` that says of itself that it computes later, and does so when told: an asynchronous device under the test's hand."""

    asynchronous = True

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.capacity = runner.capacity
        self.held: deque[tuple[Future[Finished], Finished | Exception]] = deque()
        self.fail_next = False

    def forward(self, batch: Any) -> Any:
        return self.runner.forward(batch)

    def draw(self, forward: Any, wanted: Any) -> Future[Finished]:
        future: Future[Finished] = Future()
        outcome: Finished | Exception = self.runner.draw(forward, wanted).result()
        if self.fail_next:
            outcome, self.fail_next = RuntimeError("the device is on fire"), False
        self.held.append((future, outcome))
        return future

    def complete(self) -> None:
        """The oldest launched step is done."""
        future, outcome = self.held.popleft()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def scrub(self, pages: Any) -> None:
        self.runner.scrub(pages)

    def drain(self) -> None:
        while self.held:
            self.complete()

    def close(self) -> None:
        pass


def under_hand(folder: Path, desk: GrammarDesk | None = None) -> tuple[Ahead, Pipeline, Driver]:
    decoder = load_decoder(folder, torch.float32, torch.device("cpu"))
    runner = Ahead(make_runner(decoder, PoolSize(16, 2048)))
    core = WorkerCore(runner, Limits(slots=16), EOS, 512, desk)
    pipeline = Pipeline(core)
    pipeline.take(Reset(1))
    assert pipeline.turn() == Emptied(1)
    return runner, pipeline, Driver(core)


def turned(pipeline: Pipeline) -> list[Any]:
    """What comes out until nothing more happens by itself."""
    found: list[Any] = []
    while (done := pipeline.turn()) is not Turn.BLOCKED:
        if done is not Turn.MOVED:
            found.append((done.session, done.message) if isinstance(done, Done) else done)
    return found


def test_a_pipeline_keeps_two_steps_launched(model_folder: Folder) -> None:
    runner, pipeline, driver = under_hand(model_folder("llama"))
    driver.open(0, [1, 2, 3])
    for plan in [driver.plan({0: 3}), *(driver.plan({0: 0}) for _ in range(3))]:
        pipeline.take(Order(1, plan))
    assert (turned(pipeline), len(runner.held), len(pipeline)) == ([], 2, 2)
    for left in (1, 0, 0, 0):
        runner.complete()
        ((_, result),) = turned(pipeline)
        assert (len(result.ids), len(pipeline)) == (4, left)
    assert not runner.held


def test_a_failed_step_voids_what_is_launched_behind_it(model_folder: Folder) -> None:
    runner, pipeline, driver = under_hand(model_folder("llama"))
    driver.open(0, [1, 2, 3])
    plans = [driver.plan({0: 3}), *(driver.plan({0: 0}) for _ in range(3))]
    pipeline.take(Order(1, plans[0]))
    turned(pipeline)
    runner.fail_next = True
    for plan in plans[1:]:
        pipeline.take(Order(1, plan))
    turned(pipeline)
    runner.complete()
    ((_, first),) = turned(pipeline)
    assert isinstance(first, Result)
    runner.complete()
    ((_, second),) = turned(pipeline)
    assert second == StepFailed(2, "the step failed (RuntimeError)")
    runner.drain()
    assert turned(pipeline) == []
    pipeline.take(Reset(2))
    assert turned(pipeline) == [Emptied(2)]
    pipeline.take(Order(2, plans[0]))
    turned(pipeline)
    runner.complete()
    assert turned(pipeline)[0][1].ids == first.ids


def test_a_plan_that_does_not_fit_is_reported_after_the_step_before_it(model_folder: Folder) -> None:
    runner, pipeline, driver = under_hand(model_folder("llama"))
    driver.open(0, [1, 2, 3])
    pipeline.take(Order(1, driver.plan({0: 3})))
    pipeline.take(Order(1, Plan(2, pack_ids([9]), pack_ids([0]))))
    pipeline.take(Order(1, driver.plan({0: 0})))
    assert turned(pipeline) == []
    runner.complete()
    (_, first), (_, second) = turned(pipeline)
    assert isinstance(first, Result)
    assert (second.step, "not live" in second.message) == (2, True)


def test_a_reset_drops_launched_steps_and_waits_for_the_device(model_folder: Folder) -> None:
    runner, pipeline, driver = under_hand(model_folder("llama"))
    driver.open(0, [1, 2, 3])
    for plan in [driver.plan({0: 3}), driver.plan({0: 0}), driver.plan({0: 0})]:
        pipeline.take(Order(1, plan))
    turned(pipeline)
    pipeline.take(Reset(7))
    assert turned(pipeline) == [Emptied(7)]
    assert (len(runner.held), driver.core.live) == (0, 0)


def test_a_row_that_fails_is_dead_in_the_step_launched_behind_it(model_folder: Folder) -> None:
    """NaN is seen when a step is read; the next one, launched before, has run the row again."""

    def poisoned() -> Iterator[tuple[WorkerCore, Driver]]:
        core = core_of(model_folder("llama"), tokens=96)
        driver = Driver(core)
        driver.open(0, [1, 2, 3])
        driver.open(1, [4, 5, 6], temperature=1.0, logprobs=1)
        core.execute(driver.plan({0: 3, 1: 3}))
        core.runner._compute._pool.values[1][driver.held[1]] = float("nan")  # type: ignore[attr-defined]
        yield core, driver

    outcomes = []
    for run in (lambda core, plans: [core.execute(plan) for plan in plans], ahead):
        core, driver = next(poisoned())
        results = run(core, [driver.plan({0: 0, 1: 0}) for _ in range(4)])
        outcomes.append(told(results))
        assert [failure.code for result in results for failure in result.failures] == ["nan"]
        assert [list(result.yields) for result in results] == [[1, 0]] * 4
        assert torch.isfinite(core.runner._compute._pool.values[1]).all()  # type: ignore[attr-defined]
    assert outcomes[0] == outcomes[1]


def test_constrained_rows_in_consecutive_plans(model_folder: Folder) -> None:
    """The draw of the second plan waits for the first's token, not its forward pass; penalties likewise."""
    runner, pipeline, driver = under_hand(model_folder("llama"), desk_of(lambda _: Scripted([9, 8, 7])))
    driver.open(0, [1, 2, 3], grammar=ANY)
    driver.open(1, [4, 5], repetition_penalty=1.5)
    plans = [driver.plan({0: 3, 1: 2}), *(driver.plan({0: 0, 1: 0}) for _ in range(4))]
    for plan in plans:
        pipeline.take(Order(1, plan))
    assert turned(pipeline) == []
    assert (len(runner.held), len(pipeline)) == (1, 3)
    results: list[Result] = []
    while len(results) < len(plans):
        runner.complete()
        results += [result for _, result in turned(pipeline)]
    assert ids_of(results) == [9, 8, 7]
    assert [list(unpack_ids(result.grammar_ended)) for result in results] == [[], [], [0], [0], [0]]
    assert len(ids_of(results, 1)) == 5


def test_a_late_mask_keeps_its_row_where_it_is_launched_ahead(model_folder: Folder) -> None:
    fillers = Later()
    core = core_of(model_folder("llama"), desk=desk_of(lambda _: Scripted([9, 8]), fillers=fillers))
    driver = Driver(core)
    driver.open(0, [1, 2, 3], grammar=ANY)
    driver.open(1, [4, 5])
    first = core.begin(driver.plan({0: 3, 1: 2}))
    second = core.begin(driver.plan({0: 0, 1: 0}))
    assert list(core.finish(first).yields) == [0, 1]
    fillers.do_all()
    third = core.begin(driver.plan({0: 0, 1: 0}))
    assert list(core.finish(second).yields) == [0, 1]
    result = core.finish(third)
    assert list(result.yields) == [1, 1]
    assert unpack_ids(result.ids)[0] == 9


def test_closing_a_constrained_slot_waits_for_its_unread_token(model_folder: Folder) -> None:
    """Its grammar may end with that token, and only the result can say so."""
    core = core_of(model_folder("llama"), desk=desk_of(lambda _: Scripted([9])))
    driver = Driver(core)
    driver.open(0, [1, 2, 3], grammar=ANY)
    first = core.begin(driver.plan({0: 3}))
    driver.close(0)
    driver.open(0, [1, 2], grammar=Grammar("d", "scripted", "regex", "other"))
    plan = driver.plan({0: 2})
    assert not core.may_begin(plan)
    assert list(unpack_ids(core.finish(first).grammar_ended)) == [0]
    assert core.may_begin(plan)
    assert ids_of([core.execute(plan)]) == [9]


def open_of(slot: int, ids: list[int]) -> SlotOpen:
    return SlotOpen(slot, 1, 0, pack_ids(ids), len(ids), 0, pack_ids([slot]), SamplingParams(100, temperature=0.0), 1)


def test_the_stand_in_runs_back_to_back_in_order_and_tells_how_idle_it_was() -> None:
    step_s = 0.01
    runner = StandInRunner(step_s, pages=64, context_length=256, vocab_size=1000)
    core = WorkerCore(runner, Limits(slots=4), (), 256, None)
    plans = [Plan(1, pack_ids([3]), pack_ids([2]), opens=(open_of(3, [7, 8]),))]
    plans += [Plan(step, pack_ids([3]), pack_ids([0])) for step in range(2, 9)]
    began = time.perf_counter()
    results = ahead(core, plans)
    assert time.perf_counter() - began >= 8 * step_s
    expected = [7, 8]
    for _ in range(8):
        expected.append(int(next_token(np.array(expected[-1:]), np.array([len(expected) - 1]), 1000)[0]))
    assert ids_of(results) == expected[2:]
    assert [result.forward_ms for result in results] == pytest.approx([step_s * 1e3] * 8)
    assert results[0].idle_ms == 0.0
    pause = 0.03
    time.sleep(pause)
    late = core.execute(Plan(9, pack_ids([3]), pack_ids([0])))
    assert late.idle_ms >= pause * 1e3
    assert core.execute(Plan(10, b"", b"", closes=pack_ids([3]))).idle_ms == 0.0
    time.sleep(pause)
    fresh = core.execute(Plan(11, pack_ids([3]), pack_ids([2]), opens=(open_of(3, [7, 8]),)))
    assert fresh.idle_ms == 0.0  # nobody was there to be kept waiting
    runner.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "phloem-stand-in"]


def test_a_stand_in_that_burns_computes_at_launch_on_all_its_threads() -> None:
    step_s, steps = 0.01, 10
    runner = StandInRunner(0.0, Burner(step_s, 2), pages=64, context_length=256, vocab_size=1000)
    core = WorkerCore(runner, Limits(slots=4), (), 256, None)
    assert not runner.asynchronous
    core.execute(Plan(1, pack_ids([3]), pack_ids([2]), opens=(open_of(3, [7, 8]),)))
    own, team = time.thread_time(), time.process_time()
    results = [core.execute(Plan(2 + step, pack_ids([3]), pack_ids([0]))) for step in range(steps)]
    own, team = time.thread_time() - own, time.process_time() - team
    assert 0.3 * steps * step_s < own < 3 * steps * step_s  # cores run at what speed they like
    assert team > 1.1 * own  # the helper burns too
    assert sum(result.forward_ms for result in results) >= 0.3 * steps * step_s * 1e3
    began = time.perf_counter()
    time.sleep(0.03)
    assert core.execute(Plan(12, pack_ids([3]), pack_ids([0]))).idle_ms >= 30
    assert time.perf_counter() - began >= 0.03 + 0.3 * step_s
    runner.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("phloem-burner")]
