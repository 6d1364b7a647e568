"""What could make a small template build a large value, checked before it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import do_indent, make_attrgetter

MAX_TEXT = 8 << 20  # characters of any value and of the result: some two million tokens, beyond every context
MAX_WIDTH_DIGITS = 2  # of a width that text is padded or indented to, so that padding stays small
TOO_LARGE = "the chat template makes a value that is too large"
_WIDE = re.compile(rf"\d{{{MAX_WIDTH_DIGITS + 1},}}|\*|\{{[^{{}}]*\{{")  # wide, or a width taken from an argument


def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as published templates expect it: not escaped for HTML, other scripts as they are."""
    if indent is not None:
        check_widths((indent,), {})
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def checked_indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's `indent`, for widths that are not absurd."""
    check_widths((width,), {})
    growth = width if isinstance(width, int) else len(width)
    if len(text) + growth * (text.count("\n") + 1) > MAX_TEXT:
        raise SecurityError(TOO_LARGE)
    return do_indent(text, width, first, blank)


def checked_format(form: str, original: Callable[..., str]) -> Callable[..., str]:
    """`form.format`, whose call checks what it is given."""

    def checked(*args: Any, **kwargs: Any) -> str:
        check_format(form, [*args, *kwargs.values()])
        return original(*args, **kwargs)

    return checked


def checked_replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    check_replacement(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), count)


@pass_environment
def checked_join(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    parts = list(value)
    if attribute is not None:
        parts = list(map(make_attrgetter(environment, attribute), parts))
    return str(d).join(check_joined(str(d), [str(part) for part in parts]))


def check_joined(joint: str, parts: Any) -> list[Any]:
    """The parts as a list, since only a list can be counted and then joined."""
    listed = list(parts)
    if len(joint) * len(listed) + sum(len(part) for part in listed if isinstance(part, str)) > MAX_TEXT:
        raise SecurityError(TOO_LARGE)
    return listed


def check_replacement(text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        times = text.count(old) if len(new) > len(old) else 0
        if len(text) + times * (len(new) - len(old)) > MAX_TEXT:
            raise SecurityError(TOO_LARGE)


def check_repetition(sequence: Any, times: Any) -> None:
    if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(times, int) and len(sequence) * times > MAX_TEXT:
        raise SecurityError(TOO_LARGE)


def check_format(form: str, values: Any) -> None:
    """A format string and the values for it: no wide fields, and no field often filled with something long."""
    if _WIDE.search(form):
        raise SecurityError("the chat template formats with a width that is too large")
    listed = (
        list(values.values()) if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else [values]
    )
    longest = max(map(_length, listed), default=0)
    if len(form) + (form.count("{") + form.count("%")) * longest > MAX_TEXT:
        raise SecurityError(TOO_LARGE)


def _length(value: Any) -> int:
    """Characters that a value may take in a format; of a container, which is rarely formatted, a guess on the safe side."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return MAX_TEXT // 16 if isinstance(value, (dict, list, tuple)) else 100


def check_widths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for width in (*args, *kwargs.values()):
        if isinstance(width, int) and width >= 10**MAX_WIDTH_DIGITS:
            raise SecurityError("the chat template pads to a width that is too large")
