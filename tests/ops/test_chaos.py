"""`phloem chaos` without processes: what is asked, counted, judged, and chosen. tests/integration/test_chaos.py does the faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phloem.chaos.clients import overtaking, refusal_times
from phloem.chaos.command import FAULT_NAMES
from phloem.chaos.faults import FAULTS, chosen
from phloem.chaos.figures import figures
from phloem.chaos.gauges import held, parse
from phloem.chaos.outcome import Aim, Outcome, none_fail, same_text
from phloem.chaos.report import as_json, misses, table
from phloem.chaos.requests import Request, constrained, plain, streams
from phloem.chaos.run import Chaos
from phloem.chaos.sight import Lookout
from phloem.chaos.stream import Stream
from phloem.chaos.wishes import Wishes


def event(ids: list[int], finish: str | None = None) -> bytes:
    reason = None if finish is None else {"type": finish}
    return json.dumps(
        {"text": "".join(map(chr, ids)), "output_ids": ids, "meta_info": {"finish_reason": reason}}
    ).encode()


def stream(
    *events: tuple[float, list[int]], finish: str | None = "length", over_at: float = 0.0, index: int = 0
) -> Stream:
    """A stream whose events came at these times; the last of them ends it."""
    found = Stream(plain(index, 4, 0, "x"), status=200)
    for number, (at, ids) in enumerate(events):
        found.take(event(ids, finish if number == len(events) - 1 else None), at)
    found.over_at = found.over_at or over_at
    return found


def test_the_names_in_the_help_are_those_of_the_faults() -> None:
    assert tuple(fault.name for fault in FAULTS) == FAULT_NAMES


def test_long_faults_are_done_only_when_asked_for() -> None:
    usual = [fault.name for fault in chosen((), long=False)]
    assert "flood" not in usual
    assert [fault.name for fault in chosen((), long=True)] == list(FAULT_NAMES)
    assert [fault.name for fault in chosen(("flood", "worker-killed"), long=False)] == ["worker-killed", "flood"]
    with pytest.raises(ValueError, match=r"--only: .*'fire'"):
        chosen(("fire",), long=False)


@pytest.mark.parametrize(("setting", "value"), [("streams", 1), ("tokens", 9), ("flood", 0), ("seed", -1)])
def test_wishes_out_of_range_are_refused_by_the_flag(setting: str, value: int) -> None:
    kept: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=f"--{setting}: between"):
        Wishes(**kept)


def test_a_persons_settings_beat_those_of_the_tiny_model_but_not_what_the_figures_rest_on() -> None:
    settings = Wishes().settings({"PHLOEM_THREADS": "3", "PHLOEM_LOG_LEVEL": "error"}, 1, 2)
    assert (settings["PHLOEM_THREADS"], settings["PHLOEM_DTYPE"]) == ("3", "float32")
    assert settings["PHLOEM_LOG_LEVEL"] == "info"
    assert "PHLOEM_DTYPE" not in Wishes(model="smollm2").settings({}, 1, 2)


def test_half_of_the_streams_are_constrained_and_all_are_different() -> None:
    asked = streams(8, 400, seed=3)
    assert [request.constrained for request in asked] == [False, True] * 4
    assert len({request.body for request in asked}) == 8


def test_a_constrained_answer_is_right_only_if_its_schema_allows_it() -> None:
    request = constrained(1, 55, 0)
    words = ["abcdefgh"] * 5
    assert request.is_right(json.dumps(words))
    for wrong in (words[1:], [*words[1:], "ABCDEFGH"], [*words[1:], "short"], {"a": words}):
        assert not request.is_right(json.dumps(wrong))
    assert not request.is_right(json.dumps(words)[:-3])


def test_a_stream_that_grows_to_its_end_has_ended_once() -> None:
    found = stream((1.0, [97]), (1.5, [97, 98]), (4.0, [97, 98, 99]))
    assert found.ended
    assert not found.failed
    assert found.repeated == 0
    assert found.arrivals == [1.0, 1.5, 4.0]
    assert (found.ids, found.text) == ([97, 98, 99], "abc")


@pytest.mark.parametrize("second", [[98], [97], [], [99, 98]])
def test_what_takes_something_back_is_counted_as_a_repetition(second: list[int]) -> None:
    found = Stream(plain(0, 4, 0, "x"), status=200)
    found.take(event([97, 98]), 1.0)
    found.take(event(second), 2.0)
    assert found.repeated == 1


def test_an_event_after_the_end_is_a_repetition() -> None:
    found = stream((1.0, [97]), (2.0, [97, 98]))
    found.take(event([97, 98], "length"), 3.0)
    assert found.repeated == 1


@pytest.mark.parametrize(
    ("status", "payload", "kind"),
    [
        (429, None, "refused"),
        (503, None, "refused"),
        (500, None, "failed"),
        (200, b'{"error": {"message": "m"}}', "failed"),
    ],
)
def test_a_refusal_is_no_failure_and_anything_else_without_an_end_is(
    status: int, payload: bytes | None, kind: str
) -> None:
    found = Stream(plain(0, 4, 0, "x"), status=status, over_at=2.0)
    if payload is not None:
        found.take(payload, 1.0)
    assert (found.refused, found.failed) == (kind == "refused", kind == "failed")


def test_figures_count_gaps_and_compare_with_what_was_undisturbed() -> None:
    same = stream((0.0, [97]), (0.1, [97, 98]), (3.1, [97, 98, 99]))
    other = stream((0.0, [97]), (0.2, [97, 120]), index=1)
    broken = stream((0.0, [97]), (0.5, [97, 98]), finish=None, over_at=5.0, index=2)
    reference = {index: ([97, 98, 99], "abc") for index in range(3)}
    found = figures([same, other, broken], reference, struck_at=0.3, noticed_at=1.0)
    assert (found.requests, found.ended, found.failed, found.differs) == (3, 2, 1, 1)
    assert found.worst_gap_s == pytest.approx(4.5)
    assert found.noticed_s == pytest.approx(0.7)
    assert not none_fail(found).held
    assert not same_text(found).held
    assert figures([other], None).differs is None
    assert same_text(figures([other], None)).held


def test_recovery_is_the_end_of_the_last_silence_that_the_fault_caused() -> None:
    def recovered(*times: float, usual_s: float = 0.0) -> float | None:
        ids = [97] * len(times)
        flow = stream(*((at, ids[: number + 1]) for number, at in enumerate(times)))
        return figures([flow], None, struck_at=10.0, usual_gap_s=usual_s).recovered_s

    assert recovered(9.9, 10.1, 12.1, 12.2) == pytest.approx(2.1)
    assert recovered(9.0, 10.0, 10.1, 10.2) == 0  # a silence before the fault
    assert recovered(10.0, 10.1, 10.2, 11.0, usual_s=1.0) == 0  # as long as usual
    assert recovered(10.0, 10.2, *(10.2 + step / 5 for step in range(1, 10)), 14.0) == 0  # it began much later


def test_an_answer_against_its_schema_is_counted_even_where_texts_are_not_compared() -> None:
    found = stream((0.0, [97]))
    found.request = Request(0, b"", True, lambda text: False)
    counted = figures([found], None)
    assert counted.wrong == 1
    assert not same_text(counted).held


def test_overtaking_is_how_many_later_ones_were_answered_sooner() -> None:
    def served(*answers: float) -> list[Stream]:
        return [stream((at, [97])) for at in answers]

    assert overtaking(served(1.0, 2.0, 3.0)) == 0
    assert overtaking(served(1.0, 6.0, 3.0, 7.0, 5.0)) == 2


def test_times_of_refusals_are_those_of_the_gateways_lines() -> None:
    lines = [
        "12:00:00.000 info    gateway  POST /generate 429 0.5 ms [req-1]",
        "12:00:00.001 info    gateway  POST /generate 200 900.0 ms [req-2]",
        "12:00:00.002 info    gateway  POST /generate 503 (not served) 2.0 ms [req-3]",
    ]
    assert refusal_times("\n".join(lines)) == pytest.approx([0.0005, 0.002])


def test_held_tells_what_is_not_zero_and_nothing_if_gauges_are_missing() -> None:
    names = ("requests_live", "requests_running", "requests_waiting", "pages_used", "locks")
    lines = [f'phloem_scheduler_{name}{{instance="a"}} 0' for name in names]
    lines += [
        "phloem_gateway_requests_live 0",
        "phloem_worker_slots_live 2",
        'phloem_tokenizer_streams_live{instance="b"} 0',
    ]
    assert held(parse("# HELP\n" + "\n".join(lines))) == {"phloem_worker_slots_live": 2}
    assert held(parse("\n".join(lines[:3]))) is None


def test_the_lookout_sees_whole_new_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("12:00 warning  scheduler  worker w-1 is not answering\n")
    lookout = Lookout({"scheduler-1": log})
    with log.open("a") as sink:
        sink.write("12:01 info  scheduler  worker w-2 is here\n12:02 warning  scheduler  worker w-2 is not ")
        sink.flush()
        lookout.look(5.0)
        assert lookout.first is None
        sink.write("answering\n")
    lookout.look(6.0)
    assert lookout.first is not None
    assert (lookout.first.at, lookout.first.who) == (6.0, "scheduler-1")
    assert lookout.first.line.endswith("w-2 is not answering")


def test_a_row_holds_only_if_each_of_its_aims_does_and_misses_are_named() -> None:
    counted = figures([stream((0.0, [97]), (1.0, [97, 98]))], None, struck_at=0.5)
    good = Outcome("good", "nothing", counted, (Aim("a", True),))
    bad = Outcome("bad", "something", counted, (Aim("a", True), Aim("b", False, "c")), troubles=("it broke",))
    found = Chaos(Wishes(), True, [good, bad])
    assert not found.held
    assert list(misses(found)) == ["bad: not held: b (c)", "bad: a request failed: it broke"]
    assert table(found).row_count == 2
    written = json.loads(as_json(found))
    assert [row["held"] for row in written["rows"]] == [True, False]
    assert written["rows"][1]["aims"][1] == {"text": "b", "held": False, "found": "c"}


def test_what_was_done_before_the_deployment_failed_is_kept_and_nothing_holds_then() -> None:
    good = Outcome("good", "nothing", figures([], None), (Aim("a", True),))
    found = Chaos(Wishes(), True, [good], trouble="after good: it is gone")
    assert not found.held
    assert list(misses(found)) == ["could not go on: after good: it is gone"]
    assert json.loads(as_json(found))["trouble"] == "after good: it is gone"
