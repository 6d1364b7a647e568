"""Detokenising and stop strings: pure functions of the ids, whatever the chunking, checked against plain restatements."""

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phloem_tokenizer.detokenise import Detokeniser, Released
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.stops import MAX_STOPS, StopScanner, StopSet
from phloem_tokenizer.vocab import Vocabulary

# Pieces that end inside characters, hold several, are not UTF-8, or begin or end stop strings.
PIECES = [
    b"a",
    b"b",
    b"ab",
    b"aab",
    b" ",
    b"\n",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x99\x82",
    b"\xff",
    b"\xe2\x96",
]
PIECES += ["🙂b".encode(), b"", b"<end>", b"<e", b"nd>", b"\xed\xa0\x80"]
HIDDEN = len(PIECES) - 4
VOCABULARY = Vocabulary(PIECES, frozenset([HIDDEN]), strip_space=False)

IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("ab é🙂<\ufffd\n"), min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Where the stop string that is complete first lies; of several complete at the same place, the longest."""
    for end in range(1, len(text) + 1):
        found = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return end - max(found), end
    return None


def expected(ids: list[int], stops: list[str], include: bool, skip: bool) -> Released:
    """The rules, restated over whole texts."""
    hidden = VOCABULARY.special if skip else frozenset()

    def decoded(count: int, final: bool) -> str:
        data = b"".join(PIECES[token] for token in ids[:count] if token not in hidden)
        text = data.decode("utf-8", "replace")
        if not final:  # leave out what a further byte could still change
            for cut in (1, 2, 3):
                tail = data[-cut:]
                if len(tail) == cut and any(_is_start(tail, more) for more in (1, 2, 3)):
                    return data[:-cut].decode("utf-8", "replace")
        return text

    for count in range(len(ids) + 1):
        text = decoded(count, final=count == len(ids))
        found = first_stop(text, stops)
        if found:
            start, end = found
            return Released(text[: end if include else start], text[start:end], count)
    return Released(decoded(len(ids), final=True))


def _is_start(tail: bytes, more: int) -> bool:
    """Whether some `more` continuation bytes make `tail` one whole character."""
    for first in (0x80, 0x90, 0xA0, 0xBF):
        try:
            if len((tail + bytes([first]) + bytes([0x80] * (more - 1))).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


def run(ids: list[int], cuts: list[int], stops: list[str], include: bool, skip: bool) -> tuple[Released, list[str]]:
    """Push the ids in chunks that end at `cuts`; also what was released after each chunk."""
    detokeniser = Detokeniser(VOCABULARY, StopSet(stops), include_stop=include, skip_special_tokens=skip)
    released: list[str] = []
    edges = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
    for start, stop in pairwise(edges):
        part = detokeniser.push(ids[start:stop])
        released.append(part.text)
        if part.stop is not None:
            return Released("".join(released), part.stop, part.keep), released
    last = detokeniser.finish()
    return Released("".join(released) + last.text, last.stop, last.keep), released


@settings(deadline=None, max_examples=400)
@given(ids=IDS, cuts=st.lists(st.integers(0, 40)), stops=STOPS, include=st.booleans(), skip=st.booleans())
@example(ids=[0, 2, 3], cuts=[1, 2], stops=["aba", "baa"], include=False, skip=True)
@example(ids=[9], cuts=[], stops=["\ufffd"], include=False, skip=True)
@example(ids=[16, 17], cuts=[1], stops=["<end>", "nd"], include=False, skip=True)
def test_any_chunking_gives_what_the_rules_say(
    ids: list[int], cuts: list[int], stops: list[str], include: bool, skip: bool
) -> None:
    whole, released = run(ids, cuts, stops, include, skip)
    assert whole == expected(ids, stops, include, skip)
    if whole.stop is not None and not include:
        # At no time did released text reach into the stop string.
        assert whole.stop not in whole.text
        assert len("".join(released)) <= len(whole.text)


@settings(deadline=None)
@given(ids=IDS, at=st.integers(0, 40), stops=STOPS)
def test_a_detokeniser_restored_from_its_ids_goes_on_with_the_same_text(
    ids: list[int], at: int, stops: list[str]
) -> None:
    at = min(at, len(ids))
    original = Detokeniser(VOCABULARY, StopSet(stops))
    if original.push(ids[:at]).stop is not None:
        return
    restored = Detokeniser(VOCABULARY, StopSet(stops))
    for token in ids[:at]:
        restored.push([token])
    rest = original.push(ids[at:])
    assert restored.push(ids[at:]) == rest
    if rest.stop is None:
        assert original.finish() == restored.finish()


@settings(deadline=None, max_examples=200)
@given(
    data=st.lists(st.sampled_from(b"A\xe2\x96\x81\xf0\x9f\x99\x82\xc3\xa9\xff\xc0\xed\xa0\x80\xf4\x90"), max_size=60)
)
def test_byte_tokens_decode_like_the_whole(byte_vocabulary: Vocabulary, data: list[int]) -> None:
    detokeniser = Detokeniser(byte_vocabulary, StopSet([]))
    parts = [detokeniser.push([byte]).text for byte in data]
    assert "".join(parts) + detokeniser.finish().text == bytes(data).decode("utf-8", "replace")


def test_half_a_character_is_never_released(byte_vocabulary: Vocabulary) -> None:
    detokeniser = Detokeniser(byte_vocabulary, StopSet([]))
    assert [detokeniser.push([byte]).text for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_no_more_is_held_back_than_could_become_a_stop() -> None:
    scanner = StopScanner(StopSet(["END!", "\n\n"]))
    texts = ["one\n", "two EN", "DE", "ND", "!x"]
    found = [scanner.push(text) for text in texts]
    assert [part.text for part in found] == ["one", "\ntwo ", "END", "", ""]
    assert [part.stop for part in found] == [None, None, None, None, "END!"]


def test_what_was_held_back_comes_out_at_the_end() -> None:
    scanner = StopScanner(StopSet(["stop"]))
    assert scanner.push("please sto").text == "please "
    assert scanner.finish() == "sto"


def test_a_long_stop_that_is_under_way_does_not_hide_a_short_one_that_is_complete() -> None:
    assert StopScanner(StopSet(["abcd", "bc"])).push("xabc").text == "xa"
    assert StopScanner(StopSet(["c", "abc"])).push("xabc").text == "x"  # complete at once: the longest


@pytest.mark.parametrize(
    "make",
    [
        lambda n: [b"\xff"] * n,  # nothing decodes
        lambda n: [b"\xe2"] * n,
        lambda n: [b"a"] * n,  # all of it nearly a stop
        lambda n: [b"\xf0\x9f"] * n,
    ],
)
def test_time_is_linear(make: Callable[[int], list[bytes]]) -> None:
    """Ten times the ids take about ten times as long, and not a hundred."""
    stops = StopSet(["a" * 200 + "b", "\ufffd" * 200 + "b"])

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            detokeniser = Detokeniser(Vocabulary(make(count), frozenset(), False), stops)
            ids = list(range(count))
            start = time.perf_counter()
            for token in ids:
                detokeniser.push([token])
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(40_000) < 40 * seconds(4_000)


@pytest.mark.parametrize("stops", [["x"] * (MAX_STOPS + 1), ["x" * 20_000], ["ok", ""]])
def test_stops_beyond_the_bounds_are_refused(stops: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        StopSet(stops)
    assert (caught.value.info.code, caught.value.info.param) == ("invalid_request", "stop")
