"""Snapshots of caches that are made a part per pass, while the cache changes."""

from __future__ import annotations

import random

import pytest

from phloem_proto.messages import KvEvents, KvWatch, KvWatchReply
from phloem_scheduler import events
from phloem_scheduler.cache import Cache
from phloem_scheduler.events import hashes_of
from phloem_scheduler.node import Node
from phloem_scheduler.settings import Settings
from phloem_scheduler.snapshot import Snapshot

from .caches import key, new_cache, put
from .fake_worker import profile
from .waiting import HERE
from .world import World


class Follower:
    """Applies what is published, as a router does, and knows in the end what each worker has."""

    def __init__(self) -> None:
        self.blocks: dict[str, set[int]] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.snapshots = 0
        self.parts = 0

    def take(self, message: KvEvents) -> None:
        place = message.incarnation, message.seq
        match message.snapshot:
            case 1:
                self.blocks[message.worker] = set()
                self.snapshots += 1
            case 2:
                assert self.places[message.worker] == place, "a change came in the middle of a snapshot"
                self.parts += 1
            case _:
                incarnation, seq = self.places.get(message.worker, (0, 0))
                assert place == (message.incarnation, seq + 1 if incarnation == message.incarnation else 1)
        self.places[message.worker] = place
        there = self.blocks.setdefault(message.worker, set())
        for event in message.events:
            hashes = {int.from_bytes(event.hashes[at : at + 8], "little") for at in range(0, len(event.hashes), 8)}
            if event.kind == "stored":
                there |= hashes
            elif event.kind == "removed":
                there -= hashes
            else:
                there.clear()


def cached(world: World, name: str) -> set[int]:
    """Blocks that a worker has by the tree itself."""
    shelf, size = world.core.workers[name].cache.shelf, world.core.tree.page_size
    return {block for node in world.core.tree.nodes() if shelf in node.copies for block in hashes_of(node, size)}


def watch(world: World, snapshot: bool = True) -> None:
    world.core.watch(KvWatch("g1", snapshot), "watch", world.now)


@pytest.mark.parametrize("seed", range(6))
def test_who_follows_from_a_snapshot_on_knows_what_is_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 3)
    rng = random.Random(seed)
    world = World(Settings(chunk_tokens=16), profile(pages=40, page_size=2, slots=4), workers=2)
    follower = Follower()
    compared = 0
    for number in range(300):
        if rng.random() < 0.5:
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 30))]
            world.open(prompt, rid=number.to_bytes(16, "big"), max_tokens=rng.randint(1, 6))
        if number % 40 == 0:
            watch(world)
        if rng.random() < 0.02:
            world.core.worker_gone("w1")
            world.join("w1", world.workers["w1"])
        world.turn()
        for name in ("w0", "w1"):
            world.step(name)
        for message in world.events:
            follower.take(message)
        world.events.clear()
        world.turn()
        for message in world.events:
            follower.take(message)
        world.events.clear()
        if not world.core.events.under_way:
            compared += 1
            for name in ("w0", "w1"):
                assert follower.blocks[name] == cached(world, name)
    assert compared > 50
    assert follower.parts > 20


def test_a_node_that_is_split_before_its_turn_is_told_whole() -> None:
    cache = new_cache(page_size=2)
    keys = [key(first, *range(9)) for first in range(4)]
    for ids in keys:
        put(cache, ids)
    snapshot = Snapshot(cache.shelf, cache.tree)
    told: list[int] = []

    def tell() -> None:
        for node in snapshot.part(1):
            told.extend(node.copies[cache.shelf].pages)

    tell()
    for ids in keys:
        cache.tree.want(HERE, ids[:24] + key(77, 77))
        cache.tree.want(HERE, ids[:8] + key(77, 77))
    while not snapshot.done:
        tell()
    assert sorted(told) == list(range(cache.shelf.total_pages))
    assert cache.shelf.total_pages == 20


def test_a_large_cache_is_told_a_part_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 8)
    world = World(shape=profile(pages=200, page_size=2))
    for number in range(12):
        rid = world.open([number] * 20, max_tokens=1)
        world.finish()
        world.cancel(rid)
    watch(world)
    parts = []
    while True:
        world.turn()
        parts.append(sum(len(event.hashes) // 8 for message in world.events for event in message.events))
        world.events.clear()
        if not world.core.events.under_way:
            break
        assert world.core.next_wakeup(world.now) == world.now
    assert sum(parts) == len(cached(world, "w0")) > 100
    assert max(parts[1:]) <= 8 + 10
    assert isinstance(world.replies["watch"], KvWatchReply)


def amid_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> World:
    """A watcher has asked for a snapshot, which takes several passes, and the first is over."""
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 4)
    world = World(shape=profile(pages=200, page_size=2))
    for number in range(12):
        world.open([number] * 20, max_tokens=1)
    world.finish()
    watch(world)
    world.turn()
    return world


def test_who_asks_in_the_middle_of_a_snapshot_gets_a_whole_one_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = amid_a_snapshot(monkeypatch)
    world.events.clear()
    watch(world)
    late = Follower()
    while world.core.events.under_way:
        world.turn()
    began = next(at for at, message in enumerate(world.events) if message.snapshot == 1)
    for message in world.events[began:]:
        late.take(message)
    assert late.snapshots == 1
    assert late.blocks["w0"] == cached(world, "w0")


def test_changes_that_waited_for_a_snapshot_come_in_messages_of_the_usual_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 2)
    monkeypatch.setattr(events, "BLOCKS_PER_MESSAGE", 4)
    world = World(shape=profile(pages=400, page_size=2))
    for number in range(8):
        world.open([number] * 30, max_tokens=1)
    world.finish()
    watch(world)
    for number in range(8, 12):
        world.open([number] * 30, max_tokens=1)
    world.finish()
    while world.core.events.under_way:
        world.turn()
    changes = [message for message in world.events if message.snapshot == 0]
    assert len(changes) >= 4
    assert max(sum(len(event.hashes) // 8 for event in message.events) for message in changes) <= 4 + 15


def test_nobody_is_left_to_watch_in_the_middle_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 2)
    world = World(shape=profile(pages=200, page_size=2))
    rid = world.open([1] * 60, max_tokens=1)
    world.open([2] * 60, max_tokens=1)
    world.finish()
    watch(world)
    world.turn()
    assert world.core.events.under_way
    world.now += 11
    world.turn()
    assert not world.core.events.under_way
    world.events.clear()
    world.cancel(rid)
    world.turn()
    assert not world.events


@pytest.mark.parametrize("page_size", [1, 16, 256, 1024])
def test_no_message_is_larger_than_can_travel_whatever_the_page_size(page_size: int) -> None:
    world = World(
        Settings(chunk_tokens=0x20000),
        profile(pages=0x40000 // page_size, page_size=page_size, max_step_tokens=0x20000, context_length=0x10000),
    )
    watch(world)
    for number in range(5):
        world.open([number] * 0xC000, max_tokens=0)
    world.finish()
    watch(world)
    world.turn()
    while world.core.events.under_way:
        world.turn()
    told = [sum(len(event.ids) // 4 for event in message.events) for message in world.events]
    changes = [count for count, message in zip(told, world.events, strict=True) if not message.snapshot]
    assert sum(changes) == 5 * 0xC000 == sum(told) - sum(changes)
    assert max(told) < events.TOKENS_PER_MESSAGE + 0x10000


def test_a_pass_of_a_snapshot_is_short_although_all_it_passes_by_is_on_other_workers() -> None:
    tree = new_cache(page_size=1).tree
    mine, other = Cache(tree, 64), Cache(tree, 512)
    put(mine, key(1, 2, 3))
    for number in range(100):
        put(other, key(1, 2, 500 + number))
        put(other, key(9), (f"salt {number}", ""))
    snapshot = Snapshot(mine.shelf, tree)
    passes = 0
    told: list[Node] = []
    while not snapshot.done:
        before = snapshot.cost
        told += snapshot.part(10)
        assert snapshot.cost - before <= 10 + 3
        passes += 1
    assert sum(len(node.copies[mine.shelf].pages) for node in told) == 3
    assert passes >= 30


def test_a_break_of_the_connection_shows_as_a_gap_of_every_worker_even_if_nothing_changes_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_PASS", 4)
    world = World(shape=profile(pages=200, page_size=2), workers=2)
    for number in range(12):
        world.open([number] * 20, max_tokens=1)
    world.finish()
    watch(world)
    world.turn()
    assert world.core.events.under_way
    known = {message.worker: message.seq for message in world.events}
    world.events.clear()
    world.core.events.interrupted()
    world.turn()
    assert {message.worker: (message.seq, message.snapshot) for message in world.events} == {
        name: (known.get(name, 0) + 2, 0) for name in ("w0", "w1")
    }
    assert not world.core.events.under_way
    world.events.clear()
    follower = Follower()
    watch(world)
    while world.core.events.under_way:
        world.turn()
    for message in world.events:
        follower.take(message)
    assert follower.blocks == {name: cached(world, name) for name in ("w0", "w1")}


def test_a_break_means_nothing_while_nobody_watches() -> None:
    world = World()
    world.core.events.interrupted()
    world.turn()
    assert world.events == []


def test_a_snapshot_waits_while_the_bus_does_not_take_what_was_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = amid_a_snapshot(monkeypatch)
    follower = Follower()
    world.core.events.paused = True
    before = len(world.events)
    for _ in range(5):
        watch(world)
        world.turn()
        assert world.core.next_wakeup(world.now) != world.now, "it would ask in vain without a pause"
    assert len(world.events) == before
    world.core.events.paused = False
    while world.core.events.under_way:
        world.turn()
    for message in world.events:
        follower.take(message)
    assert follower.blocks["w0"] == cached(world, "w0")
