"""What is asked: streams of a few hundred tokens, half of them held to a JSON schema, all greedy and with seeds of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

ITEM_BYTES = 11
"""One item of a constrained stream: eight letters, two quotes, a comma. With the tiny model's bytes, so many tokens."""
SLACK_TOKENS = 64
"""What a constrained stream may have beyond its list, so that the schema ends it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, ready to send, and whether its answer is one that was asked for."""

    index: int
    body: bytes
    constrained: bool = False
    is_right: Callable[[str], bool] = lambda text: True
    streamed: bool = True


def streams(count: int, tokens: int, seed: int) -> list[Request]:
    """``count`` requests, every other one constrained."""
    return [
        constrained(index, tokens, seed)
        if index % 2
        else plain(index, tokens, seed, f"Stream {index}, once upon a time")
        for index in range(count)
    ]


def plain(index: int, tokens: int, seed: int, text: str, *, streamed: bool = True) -> Request:
    """Free text of exactly so many tokens."""
    return Request(
        index, _body(text, seed + index, streamed, max_new_tokens=tokens, ignore_eos=True), streamed=streamed
    )


def constrained(index: int, tokens: int, seed: int) -> Request:
    """A list of words, of about so many bytes. Four different lengths take turns, so that there are several grammars."""
    items = max(1, tokens // ITEM_BYTES - index // 2 % 4)
    body = _body(
        f"Stream {index}, a list of words",
        seed + index,
        True,
        max_new_tokens=items * ITEM_BYTES + SLACK_TOKENS,
        json_schema=json.dumps(word_list(items)),
    )
    return Request(index, body, True, lambda text: is_list_of_words(text, items))


def word_list(items: int) -> dict[str, Any]:
    """JSON schema of a list of so many words."""
    word = {"type": "string", "pattern": "^[a-z]{8}$"}
    return {"type": "array", "items": word, "minItems": items, "maxItems": items}


def compiled(index: int, seed: int, fields: int) -> Request:
    """A short object under a schema of its own that takes long to compile."""
    names = [f"field_{index}_{number}" for number in range(fields)]
    properties: dict[str, Any] = {
        name: {"type": "string", "pattern": f"^(x{number}|[a-f]{{1,20}}y{number})$"}
        for number, name in enumerate(names)
    }
    schema = {"type": "object", "properties": properties, "required": names[:1], "additionalProperties": False}
    body = _body(f"Object {index}", seed + index, True, max_new_tokens=8, json_schema=json.dumps(schema))
    return Request(index, body, True, lambda text: text.startswith("{"))


def _body(text: str, seed: int, streamed: bool, **sampling: Any) -> bytes:
    params = {"temperature": 0, "sampling_seed": seed, **sampling}
    return msgspec.json.encode({"text": text, "stream": streamed, "sampling_params": params})


def is_list_of_words(text: str, items: int) -> bool:
    """Whether that is a list as `word_list` wants it."""
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(words, list)
        and len(words) == items
        and all(isinstance(word, str) and len(word) == 8 and word.isascii() and word.islower() for word in words)
    )
