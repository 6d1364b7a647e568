"""What one client of the cache events gets, whatever is published and lost: the core alone."""

from __future__ import annotations

import random

from phloem_gateway import kv_stream
from phloem_gateway.errors import ApiError
from phloem_gateway.kv_stream import KvStream, weight, well_formed
from phloem_proto import messages as m

from .cache_backend import batch, hashes, removed, stored


def taken(stream: KvStream) -> list[m.KvEvents]:
    found = []
    while (one := stream.take()) is not None:
        found.append(one)
    return found


def fed(stream: KvStream, *batches: m.KvEvents) -> list[tuple[int, int]]:
    """(seq, kind) of what the client gets of these."""
    for one in batches:
        stream.offer(one)
    return [(one.seq, one.snapshot) for one in taken(stream)]


def test_without_a_snapshot_changes_pass_and_others_snapshots_do_not() -> None:
    stream = KvStream()
    assert fed(stream, batch(5), batch(7, snapshot=1), batch(7, snapshot=2), batch(8), batch(12)) == [
        (5, 0),
        (8, 0),
        (12, 0),
    ]
    assert not stream.owed


def test_a_snapshot_comes_first_and_changes_follow_it_without_gap_or_repetition() -> None:
    stream = KvStream(snapshot=True)
    assert stream.owed
    assert fed(stream, batch(6)) == []
    assert fed(stream, batch(7, snapshot=1), batch(7, snapshot=2), batch(6), batch(7), batch(8), batch(8), batch(9)) == [
        (7, 1), (7, 2), (8, 0), (9, 0),
    ]  # fmt: skip


def at(seq: int, *workers: str) -> KvStream:
    """A stream that has a snapshot of these workers, up to ``seq``."""
    stream = KvStream(snapshot=True)
    stream.owed = False
    for worker in workers or ("w",):
        stream.offer(batch(seq, worker=worker, snapshot=1))
    taken(stream)
    return stream


def test_a_new_incarnation_begins_empty_and_a_snapshot_that_others_asked_for_is_passed_by() -> None:
    stream = at(1)
    assert fed(stream, batch(2), batch(2, snapshot=1), batch(2, snapshot=2), batch(3)) == [(2, 0), (3, 0)]
    assert fed(stream, batch(1, incarnation=8), batch(2, incarnation=8)) == [(1, 0), (2, 0)]
    assert not stream.owed
    assert fed(stream, batch(4)) == []
    assert stream.owed


def test_a_worker_that_is_not_known_waits_for_its_snapshot_even_with_its_first_change() -> None:
    stream = at(0)
    assert fed(stream, batch(1, worker="new"), batch(1)) == [(1, 0)]
    assert stream.owed
    assert fed(stream, batch(1, worker="new", snapshot=1), batch(2, worker="new")) == [(1, 1), (2, 0)]


def test_a_gap_is_healed_by_a_snapshot_and_only_that_worker_waits() -> None:
    stream = at(0, "w", "other")
    assert fed(stream, batch(1), batch(1, worker="other"), batch(3), batch(4), batch(2, worker="other")) == [
        (1, 0), (1, 0), (2, 0),
    ]  # fmt: skip
    assert stream.owed
    assert fed(stream, batch(2, worker="other", snapshot=1), batch(4, snapshot=1), batch(5)) == [(4, 1), (5, 0)]


def test_a_loss_at_the_end_is_healed_by_a_snapshot_that_others_asked_for() -> None:
    assert fed(at(4), batch(6, snapshot=1), batch(6, snapshot=2), batch(7)) == [(6, 1), (6, 2), (7, 0)]


def test_after_a_loss_that_nobody_saw_everything_waits_for_a_snapshot() -> None:
    stream, plain = KvStream(snapshot=True), KvStream()
    for one in (stream, plain):
        one.offer(batch(1))
        taken(one)
        one.lost()
    assert (stream.owed, plain.owed) == (True, False)
    assert fed(stream, batch(2), batch(2, snapshot=1), batch(3)) == [(2, 1), (3, 0)]
    assert fed(plain, batch(2)) == [(2, 0)]


def test_a_filter_keeps_other_workers_out() -> None:
    stream = KvStream(["w"], snapshot=True)
    stream.owed = False
    assert fed(stream, batch(3, snapshot=1, worker="x"), batch(1, worker="x"), batch(3, snapshot=1)) == [(3, 1)]
    assert not stream.owed


def test_workers_that_come_and_go_are_forgotten() -> None:
    stream = KvStream(snapshot=True)
    for number in range(3 * kv_stream.MAX_WORKERS):
        assert fed(stream, batch(1, worker=f"w{number}", snapshot=1)) == [(1, 1)]
    newest = f"w{number}"
    assert fed(stream, batch(1, worker="w0", snapshot=2), batch(1, worker=newest, snapshot=2)) == [(1, 2)]
    assert fed(stream, batch(2, worker="w0"), batch(2, worker=newest)) == [(2, 0)]
    assert stream.owed


def test_a_reader_that_leaves_too_much_is_ended_and_keeps_nothing() -> None:
    one = batch(1, stored([1], [1, 2, 3, 4]))
    stream = KvStream(max_bytes=3 * weight(one))
    assert all(stream.offer(one) for _ in range(3))
    assert stream.error is None
    assert stream.take() is one
    stream.offer(one)
    assert stream.offer(one)
    assert isinstance(stream.error, ApiError)
    assert (stream.error.code, stream.error.grpc_status) == ("rate_limit_exceeded", "RESOURCE_EXHAUSTED")
    assert "snapshot" in stream.error.message
    assert stream.take() is None
    assert not stream.offer(one)


def test_a_batch_that_cannot_be_read_is_told_apart() -> None:
    good = [batch(1, stored([1], [1]), removed(2), m.KvEvent("cleared")), batch(1)]
    bad = [batch(1, m.KvEvent("moved")), batch(1, m.KvEvent("stored", b"123")), batch(1, m.KvEvent("stored", hashes(1), 0, b"1")),
           batch(1, snapshot=3)]  # fmt: skip
    assert [well_formed(one) for one in good + bad] == [True] * 2 + [False] * 4


class Scheduler:
    """A model of one worker's cache and of what is published of it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.blocks: dict[int, None] = dict.fromkeys(range(1001, 1020))  # from when nobody watched
        self.seq, self.incarnation = 0, 1

    def change(self) -> m.KvEvents:
        if self._rng.random() < 0.05:
            self.incarnation, self.seq = self.incarnation + 1, 0
            self.blocks.clear()
        self.seq += 1
        gone = [block for block in self.blocks if self._rng.random() < 0.2]
        new = self._rng.sample(range(1, 1000), 3)
        for block in gone:
            del self.blocks[block]
        fresh = [block for block in new if block not in self.blocks]
        self.blocks.update(dict.fromkeys(fresh))
        return batch(self.seq, removed(*gone), stored(fresh), incarnation=self.incarnation)

    def snapshot(self) -> list[m.KvEvents]:
        blocks = list(self.blocks)
        parts = [blocks[:5], blocks[5:10], blocks[10:]]
        return [
            batch(self.seq, stored(part), incarnation=self.incarnation, snapshot=min(i + 1, 2))
            for i, part in enumerate(parts)
        ]


class Client:
    """Applies what it gets as the contract says."""

    def __init__(self) -> None:
        self.blocks: dict[int, None] = {}
        self.place = (0, 0)

    def apply(self, one: m.KvEvents) -> None:
        if one.snapshot == 1 or one.incarnation != self.place[0]:
            self.blocks.clear()
        self.place = one.incarnation, one.seq
        for event in one.events:
            values = [int.from_bytes(event.hashes[i : i + 8], "little") for i in range(0, len(event.hashes), 8)]
            if event.kind == "stored":
                assert not self.blocks.keys() & set(values)
                self.blocks.update(dict.fromkeys(values))
            else:
                for value in values:
                    del self.blocks[value]


def test_whatever_is_lost_and_repeated_a_client_that_is_in_step_knows_exactly_the_cache() -> None:
    in_step = 0
    for seed in range(200):
        rng = random.Random(seed)
        scheduler, client, stream = Scheduler(rng), Client(), KvStream(snapshot=True)
        history: dict[tuple[int, int], list[int]] = {}
        for _ in range(60):
            one = scheduler.change()
            history[scheduler.incarnation, scheduler.seq] = sorted(scheduler.blocks)
            published = [] if rng.random() < 0.15 else [one] * rng.choice([1, 1, 1, 2])
            if (stream.owed and rng.random() < 0.5) or rng.random() < 0.05:
                stream.owed = False
                published += scheduler.snapshot()
            for each in published:
                stream.offer(each)
            for each in taken(stream):
                client.apply(each)
            if client.place[1]:
                assert sorted(client.blocks) == history[client.place]
                in_step += client.place == (scheduler.incarnation, scheduler.seq)
    assert in_step > 3000
