"""The sans-I/O core: frames, ends, attempts, reconcile, admission."""

from __future__ import annotations

import random

import pytest

from phloem_gateway.admission import Admission
from phloem_gateway.core import Core
from phloem_gateway.errors import ApiError
from phloem_gateway.live import Child, Live
from phloem_gateway.request import Generation, Sampling
from phloem_proto.codec import pack_ids
from phloem_proto.messages import Cancel, End, Held, LiveRequest, Load, SamplingParams, Text, TextFrame
from phloem_proto.messages import Live as LiveMessage
from phloem_proto.subjects import Role

RID = b"r" * 16
LOAD = Load(credit_requests=8, credit_bytes=1000)


def live(n: int = 1, rid: bytes = RID, admission: Admission | None = None) -> Live:
    ticket = (admission or Admission(100)).take([40], LOAD)[0]
    generation = Generation(Sampling(n=n), text="x")
    return Live(
        rid, generation, pack_ids(range(10)), SamplingParams(9), 1, 0.0, 100.0, ticket, [Child() for _ in range(n)]
    )


def named(core: Core) -> tuple[LiveRequest, ...]:
    """What the core tells a scheduler that it holds."""
    (message,) = core.reconcile(1, 10)
    return message.requests


def opened(core: Core, one: Live) -> Live:
    core.add(one)
    core.begin_attempt(one, "tok", ("sched", 5))
    assert core.opened(one)
    return one


def frame(
    offset: int, ids: list[int], *, child: int = 0, attempt: int = 1, end: End | None = None, text: str = "t"
) -> TextFrame:
    return TextFrame(RID, attempt, child, offset, pack_ids(ids), text, end)


def test_frames_in_order_are_kept_until_taken() -> None:
    core, one = Core(10_000), live()
    opened(core, one)
    touched, again = core.text("tok", Text((frame(0, [1, 2]), frame(2, [3], end=End("stop")))), 1.5)
    assert (touched, again, one.first_token) == ([one], [], 1.5)
    assert [f.offset for f in one.take()] == [0, 2]
    assert one.take() == []
    assert (list(one.children[0].ids), one.ended, one.completion_tokens) == ([1, 2, 3], True, 3)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame(0, [1], attempt=2), "stale"),
        (frame(0, [1], child=1), "malformed"),
        (TextFrame(RID, 1, 0, 0, b"abc", ""), "malformed"),
        (TextFrame(b"q" * 16, 1, 0, 0, b"", ""), "unknown"),
    ],
)
def test_frames_that_do_not_fit_are_dropped_and_counted(bad: TextFrame, reason: str) -> None:
    core, one = Core(10_000), live()
    opened(core, one)
    assert core.text("tok", Text((bad,)), 1.0) == ([], [])
    assert (core.dropped, one.pending) == ({reason: 1}, [])


def test_frames_of_a_former_detokeniser_are_stale() -> None:
    core, one = Core(10_000), live()
    opened(core, one)
    assert core.text("other", Text((frame(0, [1]),)), 1.0) == ([], [])
    assert core.dropped == {"stale": 1}


def test_a_duplicate_is_dropped_and_a_gap_opens_again() -> None:
    core, one = Core(10_000), live()
    opened(core, one)
    core.text("tok", Text((frame(0, [1, 2]),)), 1.0)
    assert core.text("tok", Text((frame(0, [1, 2]),)), 1.0) == ([], [])
    assert core.text("tok", Text((frame(5, [9]),)), 1.0) == ([], [one])
    assert core.text("tok", Text((frame(5, [9]),)), 1.0) == ([], [])
    assert core.dropped == {"duplicate": 1, "gap": 2}


def test_the_first_end_of_a_choice_wins_and_there_is_only_one() -> None:
    core, one = Core(10_000), live(2)
    opened(core, one)
    core.text("tok", Text((frame(0, [1], end=End("stop")),)), 1.0)
    assert core.end(one, End("error", code="deadline"))
    assert not core.end(one, End("abort"))
    core.text("tok", Text((frame(0, [7], child=1, end=End("length")),)), 1.0)
    ends = [(f.child, f.end.reason) for f in one.take() if f.end]
    assert ends == [(0, "stop"), (1, "error")]
    assert core.dropped == {"after_end": 1}


def test_removing_cancels_at_both_and_frees_the_credit_once() -> None:
    core, admission = Core(10_000), Admission(100)
    one = opened(core, live(admission=admission))
    assert (admission.requests, admission.waiting_bytes) == (1, 40)
    assert core.remove(RID) == [(Role.SCHEDULER, "sched", Cancel(RID, 1)), (Role.TOKENIZER, "tok", Cancel(RID, 1))]
    assert core.remove(RID) == []
    one.ticket.release()
    assert (admission.requests, admission.waiting_bytes) == (0, 0)


def test_an_ended_request_frees_its_credit_while_its_client_still_reads() -> None:
    core, admission = Core(10_000), Admission(1)
    one = opened(core, live(admission=admission))
    core.end(one, End("stop"))
    assert len(core.settle(one)) == 2
    assert core.settle(one) == []
    assert (admission.requests, admission.waiting_bytes, admission.held) == (0, 0, 1)
    with pytest.raises(ApiError):  # but not our own bound on clients
        admission.take([1], LOAD)
    assert core.remove(RID) == []
    assert admission.held == 0


def test_lost_requests_are_opened_again_with_what_is_held() -> None:
    core, one = Core(10_000), live(2)
    opened(core, one)
    core.text("tok", Text((frame(0, [1, 2]), frame(0, [3], child=1, end=End("stop")))), 1.0)
    assert core.lost([RID, b"q" * 16]) == [one]
    assert core.lost([RID]) == []  # somebody is at it already ...
    assert core.begin_attempt(one, "tok2", ("sched", 5)) == 2
    assert one.have() == (Held(pack_ids([1, 2])), Held(pack_ids([3]), True))
    assert core.opened(one)
    core.lost([RID])
    core.begin_attempt(one, "tok2", ("sched", 5))
    assert core.lost([RID]) == []  # ... whose attempt is void then
    assert not core.opened(one)


def test_former_attempts_are_no_loss() -> None:
    """One that is told late, or played back."""
    core, one = Core(10_000), live()
    opened(core, one)
    core.lost([RID], [1])
    core.begin_attempt(one, "tok2", ("sched", 5))
    core.opened(one)
    for attempt in (0, 1, 3, 2**53):
        assert core.lost([b"q" * 16, RID], [2, attempt]) == []
    assert core.opened(one)
    assert core.lost([b"q" * 16, RID], [1, 2]) == [one]


def test_who_is_gone_decides_what_is_opened_again() -> None:
    core = Core(10_000)
    one = opened(core, live())
    assert core.detokeniser_gone("other") == []
    assert core.scheduler_gone("sched", 4) == []
    assert core.leader_changed("sched", 5) == []
    assert core.leader_changed("sched", 6) == [one]


def test_an_ended_request_is_not_opened_again() -> None:
    core = Core(10_000)
    one = opened(core, live())
    core.end(one, End("abort"))
    assert core.detokeniser_gone("tok") == []
    assert list(core.reconcile(1, 10)) == [LiveMessage((), 0, 1, 1)]


def test_unknown_twice_in_a_row_is_opened_again() -> None:
    core = Core(10_000)
    one = opened(core, live())
    part = named(core)
    assert core.reconciled(part, [RID]) == []
    assert core.reconciled(part, []) == []
    assert core.reconciled(part, [RID]) == []
    assert core.reconciled(part, [RID]) == [one]


def test_a_choice_that_stays_behind_its_scheduler_is_opened_again() -> None:
    core, one = Core(10_000), live(2)
    opened(core, one)
    core.text("tok", Text((frame(0, [1, 2]),)), 1.0)
    part = named(core)
    ahead = [LiveRequest(RID, 1, (2, 3))]
    assert [core.reconciled(part, [], ahead) for _ in range(4)] == [[], [], [], [one]]
    core.begin_attempt(one, "tok", ("sched", 5))
    core.opened(one)
    part = named(core)
    ahead = [LiveRequest(RID, 2, (2, 3))]  # and once more, if that was in vain
    assert [core.reconciled(part, [], ahead) for _ in range(4)] == [[], [], [], [one]]


@pytest.mark.parametrize("theirs", [(3, 0), (2, 1)], ids=["an end", "another choice"])
def test_an_end_and_any_choice_may_be_what_is_lacking(theirs: tuple[int, int]) -> None:
    core, one = Core(10_000), live(2)
    opened(core, one)
    core.text("tok", Text((frame(0, [1, 2]),)), 1.0)
    part = named(core)
    assert [core.reconciled(part, [], [LiveRequest(RID, 1, theirs)]) for _ in range(4)][-1] == [one]


def test_a_stream_that_moves_or_has_ended_or_has_another_attempt_is_not_behind() -> None:
    core, one = Core(10_000), live(2)
    opened(core, one)
    for offset in range(20):  # always behind, but moving
        part = named(core)
        assert core.reconciled(part, [], [LiveRequest(RID, 1, (offset + 5, 0))]) == []
        core.text("tok", Text((frame(offset, [1]),)), 1.0)
    core.text("tok", Text((frame(20, [1], end=End("stop")),)), 1.0)
    part = named(core)
    for _ in range(10):  # the scheduler went on beyond a stop string
        assert core.reconciled(part, [], [LiveRequest(RID, 1, (30, 0))]) == []
    for _ in range(10):
        assert core.reconciled(part, [], [LiveRequest(RID, 2, (30, 30))]) == []
    for times in (3, 3):  # not in a row
        for _ in range(times):
            assert core.reconciled(part, [], [LiveRequest(RID, 1, (21, 2))]) == []
        assert core.reconciled(part, []) == []


def test_what_arrives_while_the_scheduler_answers_counts() -> None:
    core, one = Core(10_000), live()
    opened(core, one)
    part = named(core)
    core.text("tok", Text((frame(0, [1, 2]),)), 1.0)
    for _ in range(10):
        assert core.reconciled(part, [], [LiveRequest(RID, 1, (2,))]) == []


def test_reconcile_splits() -> None:
    core = Core(10_000)
    for i in range(5):
        opened(core, live(rid=bytes([i]) * 16))
    parts = list(core.reconcile(7, 2))
    assert [len(part.requests) for part in parts] == [2, 2, 1]
    assert [(part.part, part.parts, part.number) for part in parts] == [(0, 3, 7), (1, 3, 7), (2, 3, 7)]


def test_what_changes_while_a_list_is_told_is_told_as_it_is_then() -> None:
    core = Core(10_000)
    lives = [opened(core, live(rid=bytes([i]) * 16)) for i in range(5)]
    told = core.reconcile(1, 2)
    assert len(next(told).requests) == 2
    core.remove(lives[2].rid)
    core.begin_attempt(lives[3], "tok", ("sched", 5))
    core.end(lives[4], End("abort"))
    opened(core, live(rid=bytes([9]) * 16))
    assert [part.requests for part in told] == [(LiveRequest(lives[3].rid, 2, (0,)),), ()]


def test_a_detokeniser_hears_of_what_it_has_and_is_not_settled() -> None:
    core = Core(10_000)
    lives = [opened(core, live(rid=bytes([i]) * 16)) for i in range(3)]
    core.begin_attempt(lives[1], "other", ("sched", 5))
    core.settle(lives[2])
    assert list(core.held_at("tok", 2)) == [
        LiveMessage((LiveRequest(lives[0].rid, 1, ()),), 0, 2),
        LiveMessage((), 1, 2),
    ]


def test_the_byte_budget_counts_what_is_not_taken() -> None:
    core, one = Core(2000), live()
    opened(core, one)
    for offset in range(12):
        core.text("tok", Text((frame(offset, [1], text="x" * 20),)), 1.0)
    assert core.over_budget(one)
    one.take()
    assert not core.over_budget(one)


def test_admission_by_requests_and_bytes() -> None:
    admission = Admission(max_live=3)
    tickets = admission.take([10, 20], LOAD)
    with pytest.raises(ApiError) as raised:
        admission.take([1, 1], LOAD)
    assert (raised.value.status, raised.value.retry_after) == (429, 1)
    with pytest.raises(ApiError):
        admission.take([980], Load(credit_requests=8, credit_bytes=1000, retry_after_ms=2500))
    tickets[0].started()
    tickets[1].resize(25)
    assert admission.waiting_bytes == 25
    for ticket in tickets:
        ticket.release()
    assert len(admission.take([5000], LOAD)) == 1  # larger than the grant, but alone


def test_credits_bind_even_below_our_own_bound() -> None:
    admission = Admission(max_live=100)
    admission.take([1], Load(credit_requests=1, credit_bytes=10))
    with pytest.raises(ApiError):
        admission.take([1], Load(credit_requests=1, credit_bytes=10))


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_end_each_choice_once_and_release_everything(seed: int) -> None:
    rng = random.Random(seed)
    core, admission = Core(1 << 30), Admission(100)
    ends: dict[tuple[bytes, int], int] = {}
    for number in range(6):
        one = live(rng.randint(1, 3), bytes([number]) * 16, admission)
        opened(core, one)
    for _ in range(300):
        if not core.live:
            break
        one = rng.choice(list(core.live.values()))
        move = rng.random()
        if move < 0.7:
            child = rng.randrange(len(one.children))
            offset = len(one.children[child].ids) + rng.choice([0, 0, 0, -1, 1])
            end = End("stop") if rng.random() < 0.1 else None
            made = TextFrame(one.rid, one.attempt, child, max(offset, 0), pack_ids([1]), "x", end)
            core.text("tok", Text((made,)), 1.0)
        elif move < 0.8:
            core.lost([one.rid])
        elif move < 0.95 and one.opening:
            core.begin_attempt(one, "tok", ("sched", 5))
            core.opened(one)
        elif move > 0.97:
            core.end(one, End("abort"))
        for taken in one.take():
            if taken.end is not None:
                key = (one.rid, taken.child)
                ends[key] = ends.get(key, 0) + 1
        if one.ended:
            core.remove(one.rid)
    for rid in list(core.live):
        core.remove(rid)
    assert all(count == 1 for count in ends.values())
    assert (admission.requests, admission.waiting_bytes) == (0, 0)
