"""A new leader: what went on under the former one comes back first."""

from __future__ import annotations

import pytest

from phloem_proto.messages import Live, LiveRequest
from phloem_scheduler.recovery import RECOVERY_S
from phloem_scheduler.settings import Settings

from .world import World

PROMPT = [5, 6, 7, 8]


def leading(*gateways: str, max_queued: int = 1024) -> World:
    """A leader since just now, and these gateways are there."""
    world = World(Settings(chunk_tokens=64, max_queued=max_queued))
    world.core.recovery.begin(gateways, world.now)
    return world


def code(world: World, rid: bytes, attempt: int = 1) -> str:
    """What the open was refused with; "" if it was accepted."""
    world.turn()
    error = world.replies[rid, attempt].error
    return error.code if error is not None else ""


def listed(world: World, gateway: str, *rids: bytes, part: int = 0, parts: int = 1) -> None:
    """The gateway says what it holds."""
    world.core.live(gateway, Live(tuple(LiveRequest(rid, 1, (0,)) for rid in rids), part, parts), world.now)


def test_nothing_new_is_taken_before_every_gateway_has_brought_back_what_it_holds() -> None:
    world = leading("g1", "g2")
    listed(world, "g1")
    assert code(world, world.open(PROMPT)) == "unavailable"
    listed(world, "g2")
    assert code(world, world.open(PROMPT)) == ""


def test_a_list_that_names_what_is_not_here_yet_leaves_the_door_closed() -> None:
    world = leading("g1")
    held = world.open(PROMPT, accepted=True)
    assert code(world, held) == ""
    listed(world, "g1", held, b"not yet".ljust(16))
    assert code(world, world.open(PROMPT)) == "unavailable"
    listed(world, "g1", b"not yet".ljust(16), part=0, parts=2)
    listed(world, "g1", held, part=1, parts=2)
    assert code(world, world.open(PROMPT)) == "unavailable"
    listed(world, "g1", held, part=0, parts=2)
    assert code(world, world.open(PROMPT)) == "unavailable"
    listed(world, "g1", part=1, parts=2)
    assert code(world, world.open(PROMPT)) == ""


@pytest.mark.parametrize("how", ["time", "gone"])
def test_a_gateway_that_says_nothing_does_not_keep_the_door_closed(how: str) -> None:
    world = leading("g1", "silent")
    listed(world, "g1")
    if how == "time":
        world.now += RECOVERY_S
    else:
        world.core.gateway_gone("silent", world.now)
    assert code(world, world.open(PROMPT)) == ""


def test_what_was_accepted_before_passes_a_full_queue_and_a_second_try_does_not() -> None:
    world = leading("g1", max_queued=1)
    for _ in range(4):
        assert code(world, world.open(PROMPT, accepted=True, max_tokens=50, ignore_eos=True)) == ""
    listed(world, "g1", *world.core.ledger.requests)
    world.core.opening.settings = Settings(max_queued=0)
    assert code(world, world.open(PROMPT, attempt=2), 2) == "queue_full"
