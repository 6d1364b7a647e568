"""When a service that has its process to itself has garbage collected: never in the middle of work."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest

from phloem_bus import garbage
from phloem_bus.garbage import collect_when_idle

pytestmark = pytest.mark.anyio


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.01)
    monkeypatch.setattr(garbage, "IDLE_S", 0.02)


def old_knot() -> weakref.ref[Knot]:
    """Garbage that is too old for anything but a full collection."""
    knot = Knot()
    gc.collect(1)
    return weakref.ref(knot)


async def test_no_full_collection_while_something_is_live_and_one_soon_after() -> None:
    busy = True
    full: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.append(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect_when_idle, lambda: not busy, 3600.0)
        await anyio.sleep(0.05)
        gc.callbacks.append(note)
        try:
            reference = old_knot()
            # By far more than it takes the interpreter to make a full collection of its own.
            kept: list[list[list[int]]] = [[[]] for _ in range(200_000)]
            await anyio.sleep(0.2)
            assert kept
            assert full == []
            assert reference() is not None
            busy = False
            with anyio.fail_after(10):
                while reference() is not None:  # noqa: ASYNC110 - what is waited for has no event
                    await anyio.sleep(0.01)
        finally:
            gc.callbacks.remove(note)
            tasks.cancel_scope.cancel()


async def test_a_process_that_is_never_idle_collects_in_the_end() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect_when_idle, lambda: False, 0.5)
        await anyio.sleep(0.05)
        reference = old_knot()
        assert reference() is not None
        with anyio.fail_after(10):
            while reference() is not None:  # noqa: ASYNC110 - what is waited for has no event
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_afterwards_everything_is_as_it_was() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with anyio.move_on_after(0.05):
        await collect_when_idle(lambda: True, 3600.0)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)
