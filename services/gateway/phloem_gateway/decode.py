"""JSON bodies to typed structs, with errors that name the field in the client's words."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from .errors import ApiError
from .limits import MAX_DEPTH

T = TypeVar("T")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]+)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_TYPES = re.compile(r"`([a-z |]+)`")
_WORDS = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "array": "a list", "object": "an object",
    "null": "null",
}  # fmt: skip
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""Matches from every quote on, even in a string that never ends: so no byte is looked at twice."""
_BRACKETS = re.compile(rb"[\[\]{}]")


def decode(body: bytes, kind: type[T]) -> T:
    """Read ``body`` as a ``kind`` (a msgspec struct with typed fields; unknown fields are ignored).

    Raises:
        ApiError: ``invalid_json``, ``missing_required_parameter`` or ``invalid_type``, with ``param`` set where one field is at fault.
    """
    check_depth(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _translate(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ApiError("invalid_json", "The request body is not valid JSON.") from None
    except RecursionError:
        raise _too_deep() from None


def check_depth(text: bytes) -> None:
    """Raises `ApiError` if brackets outside strings nest deeper than `MAX_DEPTH`."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", text)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError("invalid_json", f"The request body is nested more than {MAX_DEPTH} levels deep.")


def _translate(text: str) -> ApiError:
    match = _PATH.match(text)
    what, path = (match["what"], match["path"]) if match else (text, None)
    param = _param(path)
    missing = _MISSING.search(what)
    if missing:
        name = f"{param}.{missing['name']}" if param else missing["name"]
        return ApiError("missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
    what = _TYPES.sub(lambda types: " or ".join(_WORDS.get(t, t) for t in types[1].split(" | ")), what).replace(
        ", got", " but got"
    )
    subject = f"'{param}'" if param else "the request body"
    return ApiError("invalid_type", f"Invalid type for {subject}: {what[:1].lower()}{what[1:]}.", param=param)


def _param(path: str | None) -> str | None:
    """``$.messages[...].content`` -> ``messages[].content``."""
    if path is None:
        return None
    inner = path.removeprefix("key in ").removeprefix("$").lstrip(".").replace("[...]", "[]")
    return inner or None


def to_json(value: Any) -> bytes:
    """Encode a reply."""
    return msgspec.json.encode(value)
