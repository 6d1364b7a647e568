"""Log lines about a row carry its request, so that an operator can follow one through the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest

from phloem_bus.service import ServiceContext
from phloem_gpu_worker.core import WorkerCore
from phloem_gpu_worker.device import Device, ThreadDevice
from phloem_gpu_worker.draws import NOT_A_NUMBER, Wanted
from phloem_gpu_worker.errors import GrammarError
from phloem_gpu_worker.grammar_desk import GrammarDesk
from phloem_gpu_worker.matchers import Matcher
from phloem_gpu_worker.runner import Finished
from phloem_gpu_worker.stand_in import StandInRunner
from phloem_proto.codec import pack_ids
from phloem_proto.messages import Plan

from .cores import desk_of
from .matchers import ANY, Later, Scripted
from .together import SHAPE, opened, together

ILL, FINE = b"\x11" * 16, b"\x22" * 16


class Broken(StandInRunner):
    """Draws no number in slot 3, or fails the third step altogether."""

    def __init__(self, *, nan: bool = False, fail_at: int = 0) -> None:
        super().__init__(0.0, **SHAPE)
        self._nan = nan
        self._left = fail_at

    def forward(self, batch: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("out of memory")
        return super().forward(batch)

    def draw(self, forward: Any, wanted: Wanted | None) -> Future[Finished]:
        future = super().draw(forward, wanted)
        finished = future.result()
        if self._nan and wanted is not None and finished.drawn is not None:
            fault = np.where(wanted.slots == 3, NOT_A_NUMBER, finished.drawn.fault)
            future = Future()
            future.set_result(replace(finished, drawn=replace(finished.drawn, fault=fault)))
        return future


def with_desk(desk: GrammarDesk) -> Callable[[WorkerCore, ServiceContext], Device]:
    def make(core: WorkerCore, _: ServiceContext) -> Device:
        core.desk = desk
        return ThreadDevice(core)

    return make


def refuse(_: object) -> Matcher:
    raise GrammarError("no such grammar")


CASES: dict[str, dict[str, Any]] = {
    "nan": {"runner": Broken(nan=True)},
    "grammar_failed": {"device": with_desk(desk_of(refuse, vocab=1000)), "grammar": ANY},
    "grammar_too_slow": {
        "device": with_desk(desk_of(lambda _: Scripted([9]), vocab=1000, fillers=Later(), late_steps=2)),
        "grammar": ANY,
    },
}


async def plans(
    steps: int, runner: StandInRunner | None = None, device: Any = "thread", max_payload: int = 1 << 20, **ill: Any
) -> list[Any]:
    """Run an ill request beside a fine one; returns the reports."""
    ids = ill.pop("ids", [1, 2, 3, 4])
    async with together(device, runner=runner, max_payload=max_payload) as world:
        scheduler = await world.scheduler()
        link = await scheduler.hello()
        opens = (opened(3, ids, rid=ILL, **ill), opened(4, [5, 6], rid=FINE))
        link.send(Plan(1, pack_ids([4, 3]), pack_ids([2, len(ids)]), opens=opens))
        for step in range(2, steps + 1):
            link.send(Plan(step, pack_ids([4, 3]), pack_ids([0, 0])))
        return await scheduler.reports_of(steps)


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[tuple[str, str]]:
    """Request and text of the worker's lines of this level."""
    found = [record for record in caplog.records if record.name == "phloem.worker" and record.levelno == level]
    return [(getattr(record, "request_id", ""), record.getMessage()) for record in found]


@pytest.mark.parametrize("code", CASES)
def test_a_row_that_fails_is_told_under_its_request(caplog: pytest.LogCaptureFixture, code: str) -> None:
    caplog.set_level(logging.DEBUG, "phloem")

    async def main() -> None:
        failures = [failure for report in await plans(5, **CASES[code]) for failure in report.failures]
        assert [failure.code for failure in failures] == [code]

    anyio.run(main)
    ((request, text),) = lines(caplog, logging.WARNING)
    assert request == ILL[:4].hex()
    assert code in text


def test_logprobs_that_are_too_large_are_told_under_their_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phloem")

    async def main() -> None:
        first, *_ = await plans(1, max_payload=8192, ids=[7] * 200, prompt_logprobs=20)
        assert [failure.code for failure in first.failures] == ["logprobs_too_large"]

    anyio.run(main)
    ((request, text),) = lines(caplog, logging.WARNING)
    assert request == ILL[:4].hex()
    assert "logprobs of step 1" in text


def test_a_failed_step_is_told_under_each_request_that_was_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phloem")

    async def main() -> None:
        *_, last = await plans(3, runner=Broken(fail_at=3))
        assert (last.step, last.message) == (3, "the step failed (RuntimeError)")

    anyio.run(main)
    assert [request for request, _ in lines(caplog, logging.WARNING)] == [FINE[:4].hex(), ILL[:4].hex()]


def test_a_request_that_gets_a_slot_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phloem")
    anyio.run(plans, 1)
    assert lines(caplog, logging.DEBUG) == [
        (ILL[:4].hex(), "takes slot 3 with plan 1"),
        (FINE[:4].hex(), "takes slot 4 with plan 1"),
    ]


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_scheduler_that_says_goodbye_has_not_just_gone(caplog: pytest.LogCaptureFixture, goodbye: bool) -> None:
    caplog.set_level(logging.INFO, "phloem")

    async def main() -> None:
        async with together("thread") as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([2]), opens=(opened(3, [1, 2]),)))
            await scheduler.reports_of(1)
            while "scheduler s is here" not in caplog.text:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.01)
            if goodbye:
                await scheduler.presence.goodbye()
                await scheduler.lost.wait()
            else:
                link.close()
                while "sequences" not in caplog.text:  # noqa: ASYNC110 - there is no event
                    await anyio.sleep(0.01)

    anyio.run(main)
    *_, (_, said) = lines(caplog, logging.INFO)
    assert said == (
        "scheduler s has left in good order" if goodbye else "scheduler s is gone; its sequences are dropped"
    )
    assert lines(caplog, logging.WARNING) == []
