"""Writes ``data/protocol_1.json``: the bytes of one message of each type, as hex.

Run after a message type was added (``python -m tests.bus.record_messages``); what is recorded is never written again. Every field gets a
value that differs from its default, so that a moved field shows.
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from phloem_proto import codec, messages

DATA = Path(__file__).parent / "data"


def message_types() -> list[type[messages.Message]]:
    """Every message type, in order of name."""
    found = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, messages.Message)]
    return sorted((kind for kind in found if kind is not messages.Message), key=lambda kind: kind.__name__)


def example(kind: Any, number: int = 1) -> Any:
    """A value of type ``kind`` that is no default; ``number`` makes neighbours differ."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: example(field.type, number + place) for place, field in enumerate(fields)})
    if origin is typing.Annotated:
        return example(arguments[0], number)
    if origin in (typing.Union, types.UnionType):
        return example(next(argument for argument in arguments if argument is not type(None)), number)
    if origin is tuple:
        parts = arguments[:1] * 2 if arguments[-1] is Ellipsis else arguments
        return tuple(example(part, number + place) for place, part in enumerate(parts))
    if origin is dict:
        return {f"key{number}": example(arguments[1], number)}
    values: dict[Any, Any] = {
        int: 100 + number,
        float: number + 0.5,
        str: f"text{number}",
        bytes: bytes([number, 0, 0, 0]),
        bool: number % 2 == 0,
    }
    return values[kind]


def record() -> dict[str, str]:
    sender = codec.Sender("gateway", "g1", 2**62 + 1)
    return {kind.__name__: codec.encode(sender, example(kind)).hex() for kind in message_types()}


def main() -> None:
    """Add the messages that no file has yet; what is recorded stays as it is."""
    path = DATA / f"protocol_{codec.PROTOCOL_MAX}.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(record() | known, indent=1, sort_keys=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
