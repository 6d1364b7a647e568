"""Detokeniser streams: attempts, offsets, ends, stops, bounds; and that nothing of it depends on how frames are cut."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import (
    Cancel,
    End,
    Held,
    Live,
    LiveRequest,
    OpenStream,
    Output,
    StopAt,
    TextFrame,
    TokenFrame,
    TokenLogprob,
    TopLogprob,
)
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.streams import MAX_CHILDREN, MAX_TOMBSTONES, TOMBSTONE_S, Effects, Streams
from phloem_tokenizer.vocab import Vocabulary

RID, OTHER = b"r" * 16, b"o" * 16
EOS = 258
LENGTH = End("length")


@pytest.fixture
def streams(byte_vocabulary: Vocabulary) -> Streams:
    return Streams(byte_vocabulary, [EOS, 256], max_streams=3)


def packed(data: bytes) -> bytes:
    """The tiny model's ids of a text: its bytes."""
    return pack_ids(list(data))


def order(rid: bytes = RID, attempt: int = 1, gateway: str = "g1", **fields: Any) -> OpenStream:
    return OpenStream(rid, attempt, gateway, **fields)


def output(
    text: str | bytes, offset: int = 0, end: End | None = None, child: int = 0, rid: bytes = RID, attempt: int = 1
) -> Output:
    data = text.encode() if isinstance(text, str) else text
    return Output((TokenFrame(rid, attempt, child, offset, packed(data), end),))


def only(effects: Effects, gateway: str = "g1") -> TextFrame:
    assert list(effects.text) == [gateway]
    (frame,) = effects.text[gateway]
    return frame


def refused(streams: Streams, request: OpenStream, now: float = 0.0) -> str:
    with pytest.raises(Refused) as caught:
        streams.open(request, now)
    return f"{caught.value.info.code} {caught.value.info.param}".strip()


def test_frames_become_text_and_the_end_rides_with_the_last(streams: Streams) -> None:
    assert streams.open(order(), 0.0) == Effects()
    first = only(streams.take(output("Hé"[:2])))
    assert (first.offset, unpack_ids(first.ids).tolist(), first.text, first.end) == (0, list("Hé".encode()), "Hé", None)
    last = only(streams.take(output("!", 3, LENGTH)))
    assert (last.offset, last.text, last.end) == (3, "!", LENGTH)


def test_text_lags_behind_ids_and_catches_up_at_the_end(streams: Streams) -> None:
    streams.open(order(stop=("XYZ",)), 0.0)
    assert only(streams.take(output("aXY"))).text == "a"
    assert only(streams.take(output(b"W\xc3", 3))).text == "XYW"
    assert only(streams.take(output(b"", 5, LENGTH))).text == "\ufffd"


def test_a_stop_string_ends_the_choice_and_the_scheduler_learns_where(streams: Streams) -> None:
    streams.open(order(stop=("stop",)), 0.0)
    effects = streams.take(output("go stop now", end=LENGTH))
    frame = only(effects)
    assert (frame.text, frame.end) == ("go ", End("stop", "stop"))
    assert bytes(unpack_ids(frame.ids).tolist()) == b"go stop"
    assert effects.stops == [StopAt(RID, 1, 0, 7)]
    late = streams.take(output("more", 7))
    assert late == Effects()
    assert streams.ignored == {"ended": 1}


def test_a_stop_string_beats_an_end_at_the_same_token(streams: Streams) -> None:
    streams.open(order(stop=("z",)), 0.0)
    assert only(streams.take(output("abz", end=LENGTH))).end == End("stop", "z")


def test_an_end_before_the_stop_string_is_complete_stands(streams: Streams) -> None:
    streams.open(order(stop=("xyz",)), 0.0)
    effects = streams.take(output("abxy", end=LENGTH))
    assert (only(effects).text, only(effects).end, effects.stops) == ("abxy", LENGTH, [])


def test_include_stop_keeps_the_string_and_nothing_after_it(streams: Streams) -> None:
    streams.open(order(stop=("b",), include_stop=True), 0.0)
    assert only(streams.take(output("abc"))).text == "ab"


@pytest.mark.parametrize(
    ("ids", "end", "skip", "include", "text"),
    [
        ([65, EOS], End("stop"), True, False, "A"),
        ([65, EOS], End("stop"), False, False, "A"),  # it ended the text, so it is not part of it
        ([65, EOS], End("stop"), False, True, "A<|im_end|>"),
        ([65, EOS], LENGTH, False, False, "A<|im_end|>"),  # end-of-sequence was ignored
        ([65, 66], End("stop", 66), True, False, "A"),
        ([65, 66], End("stop", 66), True, True, "AB"),
        ([65, 66], End("stop"), True, False, "AB"),  # a grammar ended: its last token is text
        ([], End("stop"), True, False, ""),
    ],
)
def test_the_token_that_ended_a_choice_is_not_its_text(
    streams: Streams, ids: list[int], end: End, skip: bool, include: bool, text: str
) -> None:
    streams.open(order(skip_special_tokens=skip, include_stop=include), 0.0)
    frame = only(streams.take(Output((TokenFrame(RID, 1, 0, 0, pack_ids(ids), end),))))
    assert (frame.text, unpack_ids(frame.ids).tolist(), frame.end) == (text, ids, end)


def test_children_are_apart(streams: Streams) -> None:
    streams.open(order(n=2, stop=("!",)), 0.0)
    assert only(streams.take(output("a!", child=1))).end == End("stop", "!")
    assert only(streams.take(output("b", child=0))).end is None
    assert streams.take(output("c", child=2)) == Effects()
    assert streams.ignored == {"mismatch": 1}


def test_one_message_per_gateway_with_the_frames_in_order(streams: Streams) -> None:
    streams.open(order(n=2), 0.0)
    streams.open(order(OTHER, gateway="g2"), 0.0)
    frames = output("a").frames + output("b", rid=OTHER).frames + output("c", child=1).frames
    effects = streams.take(Output(frames))
    assert [frame.text for frame in effects.text["g1"]] == ["a", "c"]
    assert [frame.text for frame in effects.text["g2"]] == ["b"]


def test_overlaps_are_taken_once_and_a_gap_loses_the_request(streams: Streams) -> None:
    streams.open(order(), 0.0)
    streams.take(output("abc"))
    frame = only(streams.take(output("bcd", 1)))
    assert (frame.offset, bytes(unpack_ids(frame.ids).tolist()), frame.text) == (3, b"d", "d")
    assert only(streams.take(output("abcd"))).text == ""
    effects = streams.take(output("x", 9))
    assert (effects.lost, effects.text) == ({"g1": {RID: 1}}, {})
    assert len(streams) == 0
    assert streams.take(output("e", 4)) == Effects()


def test_an_end_that_comes_with_ids_already_taken_counts(streams: Streams) -> None:
    streams.open(order(), 0.0)
    streams.take(output("abc"))
    frame = only(streams.take(output("abc", end=LENGTH)))
    assert (frame.offset, frame.ids, frame.end) == (3, b"", LENGTH)


def test_attempts(streams: Streams) -> None:
    streams.open(order(attempt=2), 0.0)
    streams.take(output("ab", attempt=2))
    assert streams.open(order(attempt=2), 0.0) == Effects()  # the same reply, and the state is as it was
    assert only(streams.take(output("c", 2, attempt=2))).text == "c"
    assert refused(streams, order(attempt=1)) == "stale"
    streams.open(order(attempt=3, gateway="g2", have=(Held(packed(b"ab")),)), 0.0)
    assert streams.take(output("c", 2, attempt=2)) == Effects()
    frame = only(streams.take(output("c", 2, attempt=3)), "g2")
    assert (frame.attempt, frame.text) == (3, "c")


def test_what_is_held_is_not_released_again(streams: Streams) -> None:
    """The text that the held ids had released is gone; what they held back is not."""
    held = Held(packed(b"say \xc3"))
    done = Held(packed(b"xx"), ended=True)
    streams.open(order(n=2, have=(held, done), stop=("\u00e9 never",)), 0.0)
    assert only(streams.take(output(b"\xa9 no", 5))).text == "\u00e9 no"
    assert streams.take(output("y", 2, child=1)) == Effects()


def test_a_stop_that_is_complete_in_what_is_held_ends_the_choice_at_once(streams: Streams) -> None:
    frame = only(streams.open(order(attempt=2, have=(Held(packed(b"abSTOPcd")),), stop=("STOP",)), 0.0))
    assert (frame.offset, frame.text, frame.end) == (6, "", End("stop", "STOP"))
    assert streams.take(output("c", 8, attempt=2)).stops == [StopAt(RID, 2, 0, 6)]


def test_cancel_covers_lower_attempts_and_leaves_a_tombstone(streams: Streams) -> None:
    streams.open(order(attempt=2), 0.0)
    streams.cancel(Cancel(RID, 1), 1.0)
    assert len(streams) == 1
    streams.cancel(Cancel(RID, 2), 1.0)
    streams.cancel(Cancel(RID, 1), 1.5)
    assert len(streams) == 0
    assert refused(streams, order(attempt=2), 2.0) == "stale"
    assert refused(streams, order(attempt=2), 1.5 + TOMBSTONE_S - 0.1) == "stale"
    streams.open(order(attempt=2), 1.5 + TOMBSTONE_S)
    assert len(streams) == 1


def test_a_later_attempt_is_not_hindered_by_a_tombstone(streams: Streams) -> None:
    streams.cancel(Cancel(RID, 1), 0.0)
    streams.open(order(attempt=2), 0.0)
    assert streams.live() == [RID]


def test_tombstones_are_bounded(streams: Streams) -> None:
    for number in range(MAX_TOMBSTONES + 10):
        streams.cancel(Cancel(number.to_bytes(16, "big"), 1), 0.0)
    assert len(streams._tombstones) == MAX_TOMBSTONES
    streams.open(order((0).to_bytes(16, "big")), 0.0)  # the oldest one is gone
    assert refused(streams, order((10).to_bytes(16, "big"))) == "stale"


def test_streams_are_bounded(streams: Streams) -> None:
    for number in range(3):
        streams.open(order(bytes([number])), 0.0)
    assert refused(streams, order(b"more")) == "busy"
    streams.open(order(b"\x00", attempt=2), 0.0)  # adopting needs no room
    streams.cancel(Cancel(b"\x01", 1), 0.0)
    streams.open(order(b"more"), 0.0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": MAX_CHILDREN + 1}, "n"),
        ({"n": 2, "have": (Held(),)}, "have"),
        ({"have": (Held(b"123"),)}, "have"),
        ({"have": (Held(pack_ids([1] * 5)),), "max_tokens": 4}, "have"),
        ({"stop": ("",)}, "stop"),
    ],
)
def test_bad_opens_name_the_field_and_leave_nothing(streams: Streams, fields: dict[str, Any], param: str) -> None:
    assert refused(streams, order(**fields)) == f"invalid_request {param}"
    assert len(streams) == 0


def test_gateways_that_are_gone_and_handing_back(streams: Streams) -> None:
    streams.open(order(b"1"), 0.0)
    streams.open(order(b"2", gateway="g2"), 0.0)
    streams.open(order(b"3"), 0.0)
    assert streams.drop_gateway("g1") == 2
    assert streams.live() == [b"2"]
    assert streams.hand_back() == {"g2": {b"2": 1}}
    assert len(streams) == 0


def test_logprobs_get_the_bytes_of_their_tokens_and_are_cut_with_them(streams: Streams) -> None:
    entries = tuple(TokenLogprob(token, -1.0, (TopLogprob(0xC3, -2.0),)) for token in b"ab!c")
    prompt = (TokenLogprob(EOS, -3.0),)
    frame = TokenFrame(RID, 1, 0, 0, packed(b"ab!c"), None, entries, prompt, 5)
    streams.open(order(stop=("!",), logprobs=True), 0.0)
    text = only(streams.take(Output((frame,))))
    assert [entry.piece for entry in text.logprobs] == [b"a", b"b", b"!"]
    assert text.logprobs[0].top[0].piece == b"\xc3"
    assert text.prompt_logprobs[0].piece == b"<|im_end|>"
    assert text.cached_tokens == 5


@settings(deadline=None, max_examples=200)
@given(
    data=st.lists(st.sampled_from(b"abSTOP \xc3\xa9\xf0\x9f\x99\x82"), max_size=40),
    stops=st.lists(st.sampled_from(["STOP", "ab", "\u00e9", "\ufffd", "P "]), max_size=2, unique=True),
    seed=st.integers(0, 1 << 16),
)
def test_cuts_repeats_and_new_attempts_change_nothing(
    byte_vocabulary: Vocabulary, data: list[int], stops: list[str], seed: int
) -> None:
    """Frames of any size, repeated or overlapping, with the request adopted in between from the ids the gateway has."""
    rng = random.Random(seed)

    def one_shot() -> tuple[str, bytes, End | None]:
        streams = Streams(byte_vocabulary, [EOS])
        streams.open(order(stop=tuple(stops)), 0.0)
        frame = only(streams.take(output(bytes(data), end=LENGTH)))
        return frame.text, frame.ids, frame.end

    streams = Streams(byte_vocabulary, [EOS])
    attempt = 1
    streams.open(order(stop=tuple(stops)), 0.0)
    text, ids, end = "", b"", None
    while end is None:
        held = len(ids) // 4
        start = rng.randint(0, held)
        stop = rng.randint(held, len(data))
        final = LENGTH if stop == len(data) and rng.random() < 0.7 else None
        for frame in streams.take(output(bytes(data[start:stop]), start, final, attempt=attempt)).text["g1"]:
            assert frame.offset == len(ids) // 4
            text, ids, end = text + frame.text, ids + frame.ids, frame.end
        if end is None and rng.random() < 0.3:
            attempt += 1
            streams.open(order(attempt=attempt, stop=tuple(stops), have=(Held(ids),)), 0.0)
    assert (text, ids, end) == one_shot()


def test_what_a_gateway_names_no_more_twice_in_a_row_is_dropped(streams: Streams) -> None:
    for rid, gateway in ((b"a", "g1"), (b"b", "g1"), (b"c", "g2")):
        streams.open(order(rid, gateway=gateway), 0.0)
    both = tuple(LiveRequest(rid, 1, ()) for rid in (b"a", b"b"))
    assert streams.named("g1", Live(both[:1], 0, 2)) == 0
    assert streams.named("g1", Live(both[1:], 1, 2)) == 0
    assert streams.named("g1", Live(both[:1])) == 0
    assert streams.named("g1", Live(both)) == 0
    assert (streams.named("g1", Live(both[:1])), streams.named("g1", Live(both[:1]))) == (0, 1)
    assert streams.live() == [b"a", b"c"]
    assert (streams.named("g2", Live(())), streams.named("g2", Live(()))) == (0, 1)
    assert streams.live() == [b"a"]
