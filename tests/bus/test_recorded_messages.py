"""Old bytes and new structs: every recorded message is read as it was meant, shortened and lengthened ones as far as they go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phloem_proto.codec import Codec, Sender
from phloem_proto.messages import Message

from .record_messages import DATA, example, message_types

FILES = sorted(DATA.glob("protocol_*.json"))
TYPES = {kind.__name__: kind for kind in message_types()}


def recorded() -> list[tuple[Path, str, bytes]]:
    return [(file, name, bytes.fromhex(text)) for file in FILES for name, text in json.loads(file.read_text()).items()]


CASES = [pytest.param(name, data, id=f"{file.stem}-{name}") for file, name, data in recorded()]


def plain(value: Any) -> Any:
    """A struct as nested plain values, one list per struct."""
    if isinstance(value, msgspec.Struct):
        return [plain(getattr(value, field.name)) for field in msgspec.structs.fields(type(value))]
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def starts_with(whole: Any, recorded_part: Any) -> bool:
    """Whether ``whole`` is ``recorded_part``, apart from fields that came later at the end of a struct."""
    if isinstance(recorded_part, list):
        return (
            isinstance(whole, list)
            and len(whole) >= len(recorded_part)
            and all(starts_with(a, b) for a, b in zip(whole, recorded_part, strict=False))
        )
    return bool(whole == recorded_part)


def test_every_message_type_is_recorded() -> None:
    names = {name for _, name, _ in recorded()}
    assert names == set(TYPES), "run python -m tests.bus.record_messages for a new protocol version, or add by hand"


@pytest.mark.parametrize(("name", "data"), CASES)
def test_recorded_bytes_are_read_as_they_were_meant(name: str, data: bytes) -> None:
    version, sender, fields = msgspec.msgpack.decode(data)
    assert fields[0] == name
    envelope = Codec[Message](TYPES[name]).decode(data)
    assert envelope.version == version
    assert envelope.sender == Sender(*sender)
    assert starts_with(plain(envelope.message), fields[1:])


@pytest.mark.parametrize(("name", "data"), CASES)
def test_fields_from_the_future_are_ignored_at_every_depth(name: str, data: bytes) -> None:
    version, sender, _ = msgspec.msgpack.decode(data)
    kind = TYPES[name]
    message = example(kind)
    longer = [version, [*sender, "later"], [name, *extended(kind, message), "later", {"x": [1]}], "later"]
    assert Codec[Message](kind).decode(msgspec.msgpack.encode(longer)).message == message


def extended(kind: type[msgspec.Struct], value: msgspec.Struct) -> list[Any]:
    """The fields of a struct, each struct inside with one field more than we know."""

    def inner(item: Any) -> Any:
        if isinstance(item, msgspec.Struct):
            return [*extended(type(item), item), "later"]
        if isinstance(item, tuple) and item and isinstance(item[0], msgspec.Struct):
            return [inner(part) for part in item]
        return item

    return [inner(getattr(value, field.name)) for field in msgspec.structs.fields(kind)]


@pytest.mark.parametrize(("name", "data"), CASES)
def test_fields_that_an_older_peer_does_not_send_get_their_defaults(name: str, data: bytes) -> None:
    version, sender, fields = msgspec.msgpack.decode(data)
    kind = TYPES[name]
    required = sum(field.required for field in msgspec.structs.fields(kind))
    codec: Codec[Message] = Codec(kind)
    for length in range(required, len(fields)):
        message = codec.decode(msgspec.msgpack.encode([version, sender, fields[: 1 + length]])).message
        for place, field in enumerate(msgspec.structs.fields(kind)):
            if place >= length:
                default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
                assert getattr(message, field.name) == default
    if required:
        with pytest.raises(msgspec.ValidationError):
            codec.decode(msgspec.msgpack.encode([version, sender, fields[:required]]))
