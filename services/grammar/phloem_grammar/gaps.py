"""What llguidance compiles but does not enforce, found by drawing from its masks and validating: such schemas go elsewhere or are refused.

One gap is closed by an option (see `engine_llguidance`): a key spelled ``\\u0061`` dodges the schema of ``a``. What is left:

* ``minProperties`` counts repeated keys, which any parser merges.
* With ``\\u`` escapes off, a control character without a short escape can't be written, so that a constant holding one is a dead end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .refusal import UNSUPPORTED, Refused
from .schema import Located, subschemas

_SHORT_ESCAPES = "\b\f\n\r\t"


def llguidance_gap(tree: Any) -> Refused | None:
    """The first place of a schema that llguidance would not enforce completely, or None."""
    for at in subschemas(tree):
        if isinstance(at.schema, dict):
            gap = _counts_repeats(at) or _unwritable(at)
            if gap is not None:
                return gap
    return None


def _counts_repeats(at: Located) -> Refused | None:
    """Distinct keys are certain for required ones, for one more, and for all of an object whose keys are all declared."""
    least = at.schema.get("minProperties", 0)
    required = at.schema.get("required", [])
    closed = at.schema.get("additionalProperties") is False and not at.schema.get("patternProperties")
    if closed or least <= len(required) + 1:
        return None
    message = (
        "minProperties is enforced only up to one more than the required properties, or with additionalProperties false"
    )
    return Refused(UNSUPPORTED, message, keyword="minProperties", pointer=at.child("minProperties"))


def _unwritable(at: Located) -> Refused | None:
    for keyword in ("properties", "required", "const", "enum"):
        if keyword in at.schema:
            value = at.schema[keyword]
            texts = iter(value) if keyword == "properties" else _strings(value)
            if any(_has_control(text) for text in texts):
                message = f"{keyword} holds a control character other than \\b \\f \\n \\r \\t"
                return Refused(UNSUPPORTED, message, keyword=keyword, pointer=at.child(keyword))
    return None


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            yield top
        elif isinstance(top, list):
            stack.extend(top)
        elif isinstance(top, dict):
            stack.extend(top.keys())
            stack.extend(top.values())


def _has_control(text: str) -> bool:
    return any(char < " " and char not in _SHORT_ESCAPES for char in text)
