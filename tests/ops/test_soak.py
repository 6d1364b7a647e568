"""The soak without processes: what is drawn, how growth is judged, and what is told. tests/integration/test_soak.py does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from phloem.bench.http1 import Client
from phloem.chaos import vitals
from phloem.chaos.growth import Growth
from phloem.chaos.mix import BAD, Generate, Leave, Mix, Page
from phloem.chaos.outcome import Outcome
from phloem.chaos.report import as_json, remarks
from phloem.chaos.requests import Request
from phloem.chaos.run import Chaos
from phloem.chaos.soak import small_growth, told
from phloem.chaos.standing import Standing
from phloem.chaos.visits import Tally, Visitors
from phloem.chaos.wishes import Wishes

MINUTE_S = 60


def growth(**mb_per_minute: float) -> Growth:
    """Ten minutes of processes that begin with 100 MB and grow so much, each with twice that before the window."""
    found = Growth()
    for pid, (name, grows) in enumerate(mb_per_minute.items()):
        for second in range(0, 10 * MINUTE_S + 1, 5):
            minutes = second / MINUTE_S
            found.add(second, name, pid, 100 + grows * (minutes if minutes >= 2 else 2 * minutes - 2))
    return found


def test_the_slope_is_that_of_the_line_through_the_points() -> None:
    assert vitals.slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert vitals.slope([(0, 0), (1, 3), (2, 0), (3, 3)]) == pytest.approx(0.6)
    assert vitals.slope([(4, 7)]) == 0
    assert vitals.slope([]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_a_process_has_is_read_from_the_system() -> None:
    before = vitals.descriptors(os.getpid())
    ends = os.pipe()
    assert vitals.descriptors(os.getpid()) == before + 2
    for end in ends:
        os.close(end)
    assert 5 < vitals.resident_mb(os.getpid()) < 10_000
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in vitals.children(os.getpid())
        child.communicate(b"\n")
        assert child.pid not in vitals.children(os.getpid())
    with pytest.raises(OSError, match="No such"):
        vitals.resident_mb(child.pid)
    assert vitals.children(child.pid) == []


def test_growth_counts_after_the_first_fifth_only() -> None:
    slopes = {one.name: one.slope for one in growth(gateway=0.5, worker=0, scheduler=-2).lived_through()}
    assert slopes == pytest.approx({"gateway": 0.5, "worker": 0, "scheduler": -2})


def test_a_process_that_was_killed_or_started_meanwhile_has_no_slope() -> None:
    found = growth(worker=0.0)
    for second in range(0, 100, 5):
        found.add(second, "other", 90, second)
    for second in range(120, 10 * MINUTE_S + 1, 5):
        found.add(second, "other", 91, 30)
    assert [one.name for one in found.lived_through()] == ["worker"]
    assert dict(found.others()) == {"other": [95, 30]}
    lines = list(told(found))
    assert lines[0].startswith("worker (pid 0): +0.00 MB/min, ")
    assert lines[-1] == "other, 2 processes one after the other: at most 95, 30 MB"


@pytest.mark.parametrize(
    ("mb_per_minute", "minutes", "held"),
    [
        ({"gateway": 0.4, "worker": 0.4}, 10, True),
        ({"gateway": 0.6, "worker": 0.6}, 10, False),
        ({"gateway": 1.1, "worker": -1.0}, 10, False),
        ({"gateway": 0.1, "nats-1": 5.0}, 10, True),
        ({"gateway": 1.1}, 600, False),
        ({"gateway": 1.9}, 5, True),
        ({}, 10, False),
    ],
)
def test_each_process_and_all_together_may_grow_by_a_megabyte_per_minute(
    mb_per_minute: dict[str, float], minutes: float, held: bool
) -> None:
    assert small_growth(growth(**mb_per_minute), minutes).held is held


def test_what_is_open_must_be_what_was() -> None:
    before = Standing({"a": 10, "b": 20}, {"a": 3}, {"gateway": 4})
    assert list(before.differences(Standing({"b": 20, "a": 10}, {"a": 3}, {"gateway": 4}))) == []
    assert list(before.differences(Standing({"a": 11}, {"a": 3}, {"gateway": 4, "grammar": 1}))) == [
        "a has 11 descriptors, had 10",
        "b has 0 descriptors, had 20",
        "grammar has 1 subscriptions, had 0",
    ]
    assert str(before) == "30 descriptors, 3 tasks, 4 subscriptions"


def test_the_mix_has_everything_and_a_seed_draws_the_same() -> None:
    visits = [Mix(7, "tiny") for _ in range(2)]
    first, second = ([mix.visit() for _ in range(1000)] for mix in visits)
    assert [visit.kind for visit in first] == [visit.kind for visit in second]
    assert {visit.kind for visit in first} == {
        "free", "constrained", "chat", "left at once", "left amid", "aborted", "bad", "pin", "tokenize", "look",
    }  # fmt: skip
    generated = [visit for visit in first if isinstance(visit, Generate)]
    assert {visit.request.streamed for visit in generated if visit.leave is Leave.NEVER} == {True, False}
    bodies = [json.loads(visit.request.body) for visit in generated]
    assert {body.get("cache_salt") for body in bodies} == {None, "blue", "green"}
    assert {"return_logprob" in body for body in bodies} == {True, False}
    assert {body["sampling_params"]["temperature"] for body in bodies} == {0, 0.7, 1.0}
    bad = [visit for visit in first if isinstance(visit, Page) and visit.expected == (400,)]
    assert len({visit.body for visit in bad}) == len(BAD)


def test_a_constrained_visit_is_right_only_with_so_many_words() -> None:
    mix = Mix(0, "tiny")
    visits = (mix.visit() for _ in range(200))
    visit = next(one for one in visits if isinstance(one, Generate) and one.kind == "constrained")
    schema = json.loads(json.loads(visit.request.body)["sampling_params"]["json_schema"])
    items = schema["maxItems"]
    assert visit.request.is_right(json.dumps(["abcdefgh"] * items))
    assert not visit.request.is_right(json.dumps(["abcdefgh"] * (items + 1)))


def test_a_tally_keeps_a_few_reasons_however_many_fail() -> None:
    tally = Tally()
    for number in range(1000):
        tally.kinds["free"] += 1
        tally.fail("free", f"reason {number}")
    assert tally.figures().failed == tally.figures().requests == 1000
    assert 1 < len(tally.troubles) < 20


def test_fillers_share_not_even_a_page_with_each_other() -> None:
    mix = Mix(0, "tiny")
    texts = [text for _ in range(20) for text in json.loads(mix.filler().body)["text"]]
    assert len(texts) == len({text[:16] for text in texts}) > 500


def reply(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


ANSWER = json.dumps({"text": "abc", "output_ids": [1, 2], "meta_info": {"finish_reason": {"type": "length"}}})
LOOK = Page("look", "GET", "/metrics")
BAD_ONE = Page("bad", "POST", "/generate", b"{}", (400,))
WHOLE = Generate("free", Request(0, b"{}", streamed=False))
STREAM = Generate("free", Request(0, b"{}"))
WORDS = Generate("constrained", Request(0, b"{}", True, lambda text: text == "[]", streamed=False))
AT_ONCE = Generate("left at once", Request(0, b"{}"), Leave.AT_ONCE, 0.01)
AMID = Generate("left amid", Request(0, b"{}"), Leave.AMID, 3)


@pytest.mark.parametrize(
    ("visit", "answer", "expected"),
    [
        (LOOK, reply(200, "a 1"), "ended"),
        (LOOK, reply(500, "oh"), "failed"),
        (LOOK, reply(503, "later"), "refused"),
        (LOOK, b"", "failed"),
        (BAD_ONE, reply(400, "no"), "ended"),
        (BAD_ONE, reply(200, ANSWER), "failed"),
        (WHOLE, reply(200, ANSWER), "ended"),
        (WHOLE, reply(200, "{}"), "failed"),
        (WHOLE, reply(429, "later"), "refused"),
        (STREAM, reply(200, f"data: {ANSWER}\n\n"), "ended"),
        (STREAM, reply(200, ""), "failed"),
        (WORDS, reply(200, ANSWER), "wrong"),
        (AT_ONCE, b"HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\n", "ended"),
        (AMID, reply(500, "oh"), "failed"),
    ],
)
def test_a_visit_counts_as_what_became_of_it(visit: Generate | Page, answer: bytes, expected: str) -> None:
    tally = anyio.run(visited, visit, answer)
    found = {name for name in ("ended", "refused", "failed", "wrong") if getattr(tally, name)}
    assert found == ({"ended", "wrong"} if expected == "wrong" else {expected})
    assert bool(tally.troubles) is (expected == "failed")


async def visited(visit: Generate | Page, answer: bytes) -> Tally:
    """After one visit to a server that knows one answer."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)
            await anyio.sleep(0.1)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        visitors = Visitors(Client(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"), "127.0.0.1:1")
        await visitors.make(visit)
        await visitors.aclose()
        tasks.cancel_scope.cancel()
    return visitors.tally


def test_remarks_are_shown_and_written() -> None:
    found = Chaos(Wishes(), True)
    found.outcomes.append(Outcome("soak", "everything", Tally().figures(), (), lines=("a line",)))
    assert list(remarks(found)) == ["soak: a line"]
    assert json.loads(as_json(found))["rows"][0]["lines"] == ["a line"]


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), 1e9])
def test_a_soak_of_no_time_or_of_weeks_is_refused(minutes: float) -> None:
    with pytest.raises(ValueError, match="--soak-minutes: between"):
        Wishes(soak_minutes=minutes)
