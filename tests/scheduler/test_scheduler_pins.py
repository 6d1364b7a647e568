"""Leases on prefixes: whose they are, how long they last, what they may take, and that nothing of them is left."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Pin, PinReply, Pins, Unpin
from phloem_scheduler import pins
from phloem_scheduler.settings import Settings

from .fake_worker import profile
from .world import World

PAGE = 4
TTL_MS = 10_000


def prompt(name: int, pages: int = 5) -> list[int]:
    """Whole pages that share nothing with another name's."""
    return [1 + name] * (pages * PAGE)


def with_cached(*prompts: list[int], pages: int = 64, workers: int = 1, **settings: Any) -> World:
    """A world in whose caches these prompts are."""
    world = World(Settings(chunk_tokens=64, **settings), profile(pages=pages, page_size=PAGE), workers=workers)
    for ids in prompts:
        compute(world, ids)
    return world


def compute(world: World, ids: list[int]) -> None:
    """Somebody asks for ids, and is gone again."""
    rid = world.open(ids, max_tokens=0)
    world.finish()
    world.cancel(rid)
    world.turn()


def ask(world: World, message: Pin | Unpin) -> PinReply:
    """What the scheduler answers."""
    if isinstance(message, Pin):
        world.core.pin(message, "asked", world.now)
    else:
        world.core.unpin(message, "asked", world.now)
    world.turn()
    reply = world.replies.pop("asked")
    assert isinstance(reply, PinReply)
    return reply


def pin(world: World, ids: list[int], name: str = "a", owner: str = "me", **more: Any) -> PinReply:
    return ask(world, Pin(owner, name, more.pop("gateway", "g1"), more.pop("ttl_ms", TTL_MS), pack_ids(ids), **more))


def names(world: World, owner: str = "me") -> list[str]:
    """An owner's leases."""
    world.core.list_pins(Pins(owner), "listed", world.now)
    world.turn()
    return [info.pin for info in world.replies.pop("listed").pins]


def tokens(reply: PinReply) -> int:
    assert reply.error is None, reply.error
    assert reply.info is not None
    return reply.info.tokens


def code(reply: PinReply) -> str | None:
    return None if reply.error is None else reply.error.code


def test_owners_neither_see_nor_move_nor_end_each_others_leases() -> None:
    world = with_cached(prompt(1), prompt(2))
    assert tokens(pin(world, prompt(1), owner="me")) == tokens(pin(world, prompt(2), owner="you")) == 20
    assert (names(world, "me"), names(world, "you"), names(world, "nobody")) == (["a"], ["a"], [])
    assert code(ask(world, Unpin("nobody", "a"))) == code(ask(world, Pin("nobody", "a", "g1", 5))) == "not_found"
    assert tokens(ask(world, Unpin("you", "a"))) == 20
    assert (names(world, "me"), names(world, "you")) == (["a"], [])


def test_the_limit_of_one_owner_is_not_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MOST_PER_OWNER", 3)
    monkeypatch.setattr(pins, "MOST_PINS", 5)
    world = with_cached(prompt(1))
    assert [code(pin(world, prompt(1), name)) for name in "abcd"] == [None, None, None, "busy"]
    assert [code(pin(world, prompt(1), name, replace=True)) for name in "ae"] == [None, "busy"]
    assert [code(pin(world, prompt(1), name, owner="you")) for name in "abc"] == [None, None, "busy"]
    ask(world, Unpin("me", "a"))
    assert code(pin(world, prompt(1), "d", owner="you")) is None


@pytest.mark.parametrize("late_s", [0.0, 0.001, 100.0])
def test_a_lease_whose_time_is_over_is_gone_even_before_the_next_pass(late_s: float) -> None:
    world = with_cached(prompt(1))
    renewal = Pin("me", "a", "g1", TTL_MS)
    for late in (renewal, Unpin("me", "a")):
        assert tokens(pin(world, prompt(1))) == 20
        world.now += TTL_MS / 1000 + late_s
        assert code(ask(world, late)) == "not_found"
    assert tokens(pin(world, prompt(1))) == 20
    world.now += TTL_MS / 1000 + late_s
    world.core.list_pins(Pins("me"), "listed", world.now)
    world.turn()
    assert world.replies["listed"].pins == ()
    world.assert_empty()


def test_each_lease_ends_at_its_own_time_whatever_was_renewed_in_between() -> None:
    world = with_cached(prompt(1))
    start = world.now
    for name, ttl_s in (("long", 30), ("short", 5), ("middle", 10)):
        pin(world, prompt(1), name, ttl_ms=ttl_s * 1000)
    ends = {"long": 30, "short": 25, "middle": 10}
    world.now = start + 4
    ask(world, Pin("me", "short", "g1", 21_000))
    for second in range(5, 32):
        world.now = start + second
        world.turn()
        assert names(world) == [name for name, end in ends.items() if end > second]
    world.assert_empty()


def test_ending_a_lease_twice_takes_nothing_from_another_on_the_same_path() -> None:
    world = with_cached(prompt(1))
    pin(world, prompt(1), "a")
    pin(world, prompt(1), "b")
    assert [code(ask(world, Unpin("me", "a"))) for _ in range(3)] == [None, "not_found", "not_found"]
    assert world.core.workers["w0"].cache.shelf.pinned_pages == 5
    ask(world, Unpin("me", "b"))
    world.assert_empty()


def test_a_replaced_lease_keeps_the_new_prompt_and_lets_the_old_one_go() -> None:
    world = with_cached(prompt(1), prompt(2, 3))
    pin(world, prompt(1))
    for _ in range(2):  # a call may be made again, as its answer was lost
        assert tokens(pin(world, prompt(2, 3), replace=True)) == 12
        assert (names(world), world.core.workers["w0"].cache.shelf.pinned_pages) == (["a"], 3)
    ask(world, Unpin("me", "a"))
    world.assert_empty()


def test_a_lease_whose_replacement_is_refused_stays_as_it_was() -> None:
    world = with_cached(prompt(1), prompt(2, 20), pages=40, pin_share=0.25)
    pin(world, prompt(1))
    assert code(pin(world, prompt(2, 20), replace=True)) == "busy"
    assert tokens(pin(world, prompt(9), replace=True)) == 0  # nothing of it is cached
    assert (names(world), world.core.workers["w0"].cache.shelf.pinned_pages) == (["a"], 5)
    assert tokens(ask(world, Unpin("me", "a"))) == 20
    world.assert_empty()


def test_the_pages_that_a_replaced_lease_gives_back_count() -> None:
    """10 pages may be leased; a path of 8 makes room for one of 9, shared in part or not, but not for what another holds."""
    stem = prompt(1, 4)
    paths = [stem + prompt(2, 4), stem + prompt(3, 5), prompt(4, 9)]
    world = with_cached(*paths, pages=40, pin_share=0.25)
    for path in paths:
        assert tokens(pin(world, path, replace=True)) == len(path)
    assert tokens(pin(world, paths[2], "b")) == 36
    assert code(pin(world, paths[0], replace=True)) == "busy"
    assert world.core.workers["w0"].cache.shelf.pinned_pages == 9


def test_leases_end_with_their_gateway_and_with_their_worker() -> None:
    world = with_cached(prompt(1), workers=2)
    pin(world, prompt(1), "a", gateway="g1")
    pin(world, prompt(1), "b", gateway="g2")
    pin(world, prompt(1), "c", gateway="g2")
    ask(world, Pin("me", "c", "g1", TTL_MS))  # who renews it speaks for it
    world.core.gateway_gone("g2", world.now)
    assert names(world) == ["a", "c"]
    world.core.worker_gone("w0")
    world.core.worker_gone("w1")
    assert names(world) == []
    assert code(pin(world, prompt(1))) == "unavailable"


def test_what_is_being_computed_can_be_kept_as_far_as_it_is_planned() -> None:
    world = World(Settings(chunk_tokens=8), profile(page_size=PAGE))
    rid = world.open(prompt(1), max_tokens=0)
    world.turn()
    kept = tokens(pin(world, prompt(1)))
    assert 0 < kept < 20
    world.finish()
    world.cancel(rid)
    assert tokens(pin(world, prompt(1), replace=True)) == 20
    ask(world, Unpin("me", "a"))
    world.assert_empty()


def test_without_reuse_there_is_nothing_to_keep() -> None:
    world = with_cached(prompt(1), reuse=False)
    assert code(pin(world, prompt(1))) == "invalid_request"
    assert names(world) == []


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_calls_leaves_nothing_behind(seed: int) -> None:
    """The tree's invariants hold after each; what is leased stays cached, within the share."""
    rng = random.Random(seed)
    world = World(Settings(chunk_tokens=32, pin_share=0.5), profile(pages=60, page_size=PAGE), workers=2)
    for _ in range(400):
        ids = [rng.randrange(2) + 1 for _ in range(rng.randint(1, 8) * PAGE)]
        owner, name = rng.choice("xyz"), rng.choice("ab")
        match rng.randrange(8):
            case 0 | 1 | 2:
                reply = pin(world, ids, name, owner, replace=rng.random() < 0.7, ttl_ms=rng.randint(1, 9) * 1000)
                assert code(reply) in (None, "busy")
            case 3:
                assert code(ask(world, Unpin(owner, name))) in (None, "not_found")
            case 4:
                world.now += rng.random()
            case 5 if rng.random() < 0.1:
                gone = rng.choice(list(world.core.workers))
                world.core.worker_gone(gone)
                world.join(gone, world.workers[gone])
            case _:
                compute(world, ids)
        for worker in world.core.workers.values():
            assert worker.cache.shelf.pinned_pages <= 30
    world.core.gateway_gone("g1", world.now)
    world.turn()
    world.assert_empty()
    assert all(worker.cache.shelf.pinned_pages == 0 for worker in world.core.workers.values())
