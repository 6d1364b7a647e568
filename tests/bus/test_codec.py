"""Bytes and subjects: what packs, what parses, and what is refused."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem_proto.codec import (
    Codec,
    Sender,
    encode,
    encode_body,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from phloem_proto.messages import Beat, Cancel, Goodbye, Presence, Probe, Profile
from phloem_proto.subjects import ALL, Role, inbox, is_token, parse, slug, subject


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    data = pack_ids(ids)
    assert len(data) == 4 * len(ids)
    assert list(unpack_ids(data)) == ids


def test_ids_are_little_endian_uint32() -> None:
    assert pack_ids([1, 0x01020304]) == b"\x01\0\0\0\x04\x03\x02\x01"
    for bad in (-1, 2**32):
        with pytest.raises(OverflowError):
            pack_ids([bad])
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"\0" * 5)


@given(st.lists(st.floats(width=32)))
def test_floats_come_back(values: list[float]) -> None:
    back = list(unpack_floats(pack_floats(values)))
    assert len(back) == len(values)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(back, values, strict=True))


def test_an_envelope_names_its_sender() -> None:
    sender = Sender("gateway", "g1", 2**63 - 1)
    envelope = Codec[Presence](Presence).decode(encode(sender, Beat("ready", Profile("m"))))
    assert (envelope.sender, envelope.message) == (sender, Beat("ready", Profile("m")))
    assert Codec[Presence](Presence).decode_body(encode_body(Goodbye())) == Goodbye()


@given(st.binary(max_size=200))
def test_garbage_is_one_kind_of_error(data: bytes) -> None:
    codec: Codec[Presence] = Codec(Presence)
    for decode in (codec.decode, codec.decode_body):
        try:
            decode(data)
        except msgspec.DecodeError:
            pass


def test_a_message_outside_the_union_is_refused() -> None:
    codec: Codec[Presence] = Codec(Presence)
    with pytest.raises(msgspec.ValidationError):
        codec.decode(encode(Sender("gateway", "g", 1), Cancel(b"", 1)))
    assert codec.decode(encode(Sender("gateway", "g", 1), Probe())).message == Probe()


@given(st.text(max_size=80))
def test_a_slug_is_always_a_token(model: str) -> None:
    assert is_token(slug(model))


def test_slugs_stay_readable_and_apart() -> None:
    assert slug("smollm2") == "smollm2"
    assert slug("org/Model-1.5B").startswith("org-Model-1-5B-")
    assert len({slug(name) for name in ("a/b", "a.b", "a b", "a-b")}) == 4


def test_subjects_name_receiver_and_sender() -> None:
    text = subject("d", "m", Role.WORKER, "w1", Role.SCHEDULER)
    assert text == "ph.d.m.worker.w1.scheduler"
    address = parse(text)
    assert (address.to, address.instance, address.sender) == (Role.WORKER, "w1", Role.SCHEDULER)
    assert inbox("d", "m", Role.WORKER, ALL) == "ph.d.m.worker.all.*"
    for bad in ("a.b", "", "a b", "x" * 65, ">"):
        with pytest.raises(ValueError, match="not a subject token"):
            subject("d", "m", Role.WORKER, bad, Role.SCHEDULER)
    for bad in ("ph.d.m.worker.w1", "xx.d.m.worker.w1.scheduler", "ph.d.m.printer.w1.scheduler"):
        with pytest.raises(ValueError, match=r"not a Phloem subject|is not a valid Role"):
            parse(bad)
