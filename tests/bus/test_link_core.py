"""One end of a link as plain code: exactly once and in order over any channel, windows, acknowledgements, and when a peer is gone."""

from __future__ import annotations

import random

import pytest

from phloem_bus import link_core
from phloem_bus.link_core import LinkCore, Outgoing


class Channel:
    """Two cores and what is under way between them, in virtual time.

    Args:
        loss, twice, swap: shares of frames that are lost, come twice, or overtake the one before.
    """

    def __init__(self, rng: random.Random, loss: float = 0.0, twice: float = 0.0, swap: float = 0.0) -> None:
        self.now = 0.0
        self.rng = rng
        self.loss, self.twice, self.swap = loss, twice, swap
        self.ends = (LinkCore(0.0, 0.0), LinkCore(0.0, 0.0))
        self.under_way: tuple[list[Outgoing], list[Outgoing]] = ([], [])
        self.applied: tuple[list[bytes], list[bytes]] = ([], [])
        self.frames = 0

    def step(self, seconds: float) -> None:
        """Let both ends send what is due, then let it arrive ``seconds`` later."""
        for end, lane in zip(self.ends, self.under_way, strict=True):
            while (frame := end.next_frame(self.now)) is not None:
                self.frames += 1
                if self.rng.random() >= self.loss:
                    lane += [frame] * (2 if self.rng.random() < self.twice else 1)
                if len(lane) > 1 and self.rng.random() < self.swap:
                    lane[-1], lane[-2] = lane[-2], lane[-1]
        self.now += seconds
        for side, lane in enumerate(self.under_way):
            self.arrive(1 - side, lane)

    def arrive(self, side: int, lane: list[Outgoing]) -> None:
        end = self.ends[side]
        for frame in lane:
            end.receive(frame.seq, frame.ack, frame.body, self.now, self.now)
            while (body := end.take()) is not None:
                self.applied[side].append(body)
                end.applied(self.now)
        lane.clear()


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_applied_exactly_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    channel = Channel(rng, loss=rng.choice([0, 0.1, 0.5]), twice=rng.choice([0, 0.3]), swap=rng.choice([0, 0.3]))
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    for round_number in range(3000):
        for side in range(2):
            if round_number < 300 and rng.random() < 0.5:
                body = f"{side}.{len(sent[side])}".encode() * rng.choice([1, 1, 1, 20000])
                sent[side].append(body)
                assert channel.ends[side].push(body, channel.now)
        channel.step(rng.choice([0.001, 0.01, 0.1]))
        for side in range(2):  # never ahead, never a gap
            assert channel.applied[1 - side] == sent[side][: len(channel.applied[1 - side])]
        assert all(end.gone(channel.now) is None for end in channel.ends)
    assert channel.applied == (sent[1], sent[0])
    assert [end.unacknowledged for end in channel.ends] == [0, 0]


def test_without_loss_nothing_is_sent_twice_and_acknowledgements_ride_along() -> None:
    channel = Channel(random.Random(0))
    for number in range(2000):
        assert channel.ends[0].push(b"ping%d" % number, channel.now)
        assert channel.ends[1].push(b"pong%d" % number, channel.now)
        channel.step(0.002)
    for _ in range(10):
        channel.step(0.01)
    assert [end.resent for end in channel.ends] == [0, 0]
    assert [end.unacknowledged for end in channel.ends] == [0, 0]
    assert channel.frames < 4020


def test_one_way_traffic_is_acknowledged_before_it_would_be_resent() -> None:
    channel = Channel(random.Random(0))
    for _ in range(200):
        assert channel.ends[0].push(b"x", channel.now)
        channel.step(0.005)
    assert channel.ends[0].resent == 0
    assert channel.ends[0].unacknowledged < 20


def test_an_idle_link_says_little() -> None:
    channel = Channel(random.Random(0))
    for _ in range(1000):
        channel.step(0.01)
    assert channel.frames <= 22  # one a second and side


def test_only_what_was_applied_is_acknowledged() -> None:
    ours, theirs = LinkCore(0, 0), LinkCore(0, 0)
    ours.push(b"a", 0)
    ours.push(b"b", 0)
    for _ in range(2):
        frame = ours.next_frame(0)
        assert frame is not None
        theirs.receive(frame.seq, frame.ack, frame.body, 0, 0)
    assert theirs.take() == b"a"
    theirs.applied(0)
    assert theirs.take() == b"b"  # taken, not applied yet
    answer = theirs.next_frame(0.05)
    assert answer is not None
    assert (answer.seq, answer.ack) == (0, 1)
    ours.receive(0, answer.ack, b"", 0.05, 0.05)
    assert ours.unacknowledged == 1


def test_resending_doubles_its_pauses_and_starts_anew_after_progress() -> None:
    core = LinkCore(0, 0)
    core.push(b"a", 0)
    assert core.next_frame(0) is not None
    times, now = [], 0.0
    while now < 3.4:
        now = round(now + 0.005, 3)
        frame = core.next_frame(now)
        if frame is not None and frame.seq:
            times.append(now)
    pauses = [round(b - a, 2) for a, b in zip([0.0, *times], times, strict=False)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0], abs=0.02)
    core.receive(0, 1, b"", now, now)
    core.push(b"b", now)
    assert core.next_frame(now) is not None
    assert core.next_frame(now + 0.04) is None
    resent = core.next_frame(now + 0.051)
    assert resent is not None
    assert resent.seq == 2


def test_a_burst_that_was_lost_comes_back_in_bounded_rounds_without_waiting_in_between() -> None:
    channel = Channel(random.Random(0))
    for _ in range(1000):
        channel.ends[0].push(b"x", 0)
    channel.loss = 1.0
    channel.step(0.001)
    channel.loss = 0.0
    worst = 0
    while channel.ends[0].unacknowledged and channel.now < 10:
        before = channel.ends[0].resent
        channel.step(0.001)
        worst = max(worst, channel.ends[0].resent - before)
    assert len(channel.applied[1]) == 1000
    assert channel.ends[0].resent == 1000
    assert worst == link_core.RESEND_FRAMES
    assert channel.now < 0.5


def test_a_stalled_peer_gets_few_copies_of_what_it_will_read_anyway() -> None:
    channel = Channel(random.Random(0))
    for _ in range(1000):
        channel.ends[0].push(b"x", 0)
    stalled: list[Outgoing] = []
    while channel.now < 2.0:  # everything arrives, and is read only after two seconds
        while (frame := channel.ends[0].next_frame(channel.now)) is not None:
            stalled.append(frame)
        channel.now += 0.01
    channel.arrive(1, stalled)
    for _ in range(100):
        channel.step(0.01)
    assert len(channel.applied[1]) == 1000
    assert channel.ends[0].resent < 500
    assert channel.ends[0].unacknowledged == 0


def test_no_more_than_a_window_is_under_way() -> None:
    for size, most in ((10, link_core.WINDOW_FRAMES), (1024 * 1024, 16)):
        core = LinkCore(0, 0)
        for _ in range(2 * most):
            assert core.push(bytes(size), 0)
        sent = 0
        while (frame := core.next_frame(0)) is not None:
            sent += 1
        assert sent == most
        core.receive(0, 5, b"", 0.01, 0.01)
        while (frame := core.next_frame(0.01)) is not None:
            assert frame.seq > most
            sent += 1
        assert sent == most + 5


def test_a_message_larger_than_the_window_goes_alone() -> None:
    core = LinkCore(0, 0)
    core.push(bytes(2 * link_core.WINDOW_BYTES), 0)
    core.push(b"next", 0)
    first = core.next_frame(0)
    assert first is not None
    assert first.seq == 1
    assert core.next_frame(0) is None


def test_a_peer_that_leaves_the_window_full_is_gone_after_three_seconds() -> None:
    core = LinkCore(0, 0)
    for _ in range(link_core.WINDOW_FRAMES):
        core.push(b"x", 0)
    while core.next_frame(0) is not None:
        pass
    assert core.gone(2.9) is None
    core.receive(0, 1, b"", 2.9, 2.9)  # progress
    core.push(b"x", 2.9)
    while core.next_frame(2.9) is not None:
        pass
    assert core.gone(5.8) is None
    assert core.gone(5.95) is not None


def test_a_peer_that_applies_nothing_at_all_is_gone_in_the_end() -> None:
    core = LinkCore(0, 0)
    core.push(b"x", 100)
    core.next_frame(100)
    assert core.gone(109) is None
    assert core.gone(110.1) is not None


def test_a_backlog_without_end_ends_the_link() -> None:
    core = LinkCore(0, 0)
    pushed = 0
    while core.push(b"x", 0):
        pushed += 1
    assert pushed == link_core.BACKLOG_FRAMES
    assert core.gone(0) is not None


def test_what_comes_early_is_kept_within_bounds() -> None:
    core = LinkCore(0, 0)
    core.receive(2 * link_core.WINDOW_FRAMES, 0, b"far ahead", 0, 0)
    for seq in range(2, 50):
        core.receive(seq, 0, bytes(1024 * 1024), 0, 0)
    core.receive(1, 0, b"first", 0, 0)
    taken = 0
    while core.take() is not None:
        core.applied(0)
        taken += 1
    assert taken == 33  # the first and two windows of bytes; the rest comes again
