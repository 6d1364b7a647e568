"""The independent closing check: is a finished constrained text in the language? Shares nothing with the engines."""

from __future__ import annotations

import json
import math
import re
import warnings
from decimal import Decimal

import jsonschema_rs


def validate(kind: str, source: str, text: str) -> bool:
    """Whether ``text`` satisfies a spec.

    Args:
        kind: ``json_schema`` (formats are checked), ``json_object`` or ``regex`` (the whole text must match).
        source: the spec's source as the client gave it.
        text: what was generated, complete.

    Raises:
        ValueError: unknown kind, or a source that Python's ``re`` or jsonschema-rs can't read (such as ``\\p{L}``).

    A regex is matched by Python's backtracking ``re``: only for trusted patterns, or under a time limit of the caller's.
    """
    if kind == "regex":
        return _compiled(source).fullmatch(text) is not None
    if kind not in ("json_schema", "json_object"):
        raise ValueError(f"unknown grammar kind {kind!r}")
    try:
        value = json.loads(text, parse_float=_number)
    except (ValueError, RecursionError):
        return False
    if kind == "json_object":
        return isinstance(value, dict)
    validator = jsonschema_rs.validator_for(json.loads(source), validate_formats=True, offline=True)
    return bool(validator.is_valid(value))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[": says that a later Python may read it otherwise
            return re.compile(pattern)
    except re.error as error:
        raise ValueError(str(error)) from None


def _number(digits: str) -> float | Decimal:
    """A number beyond a double's range is still a number, not an infinity; any value as large stands for it."""
    value = float(digits)
    if math.isfinite(value):
        return value
    return Decimal("-1e400" if digits.startswith("-") else "1e400")
