"""A schema in llguidance's words: what it would read in a wider sense than the standard and an independent validator do is spelled out."""

from __future__ import annotations

import copy
from typing import Any

from .dialect import Dialect, rewrite
from .formats import PATTERNS
from .schema import subschemas


def in_engine_words(tree: Any) -> Any:
    """A copy of a schema with patterns rewritten, and with patterns in place of the formats of `PATTERNS`.

    Raises:
        ValueError: two names of ``patternProperties`` come to mean the same.
    """
    tree = copy.deepcopy(tree)
    for at in list(subschemas(tree)):
        if isinstance(at.schema, dict):
            _rewrite_patterns(at.schema)
            _replace_format(at.schema)
    return tree


def _rewrite_patterns(schema: dict[str, Any]) -> None:
    if "pattern" in schema:
        schema["pattern"] = rewrite(schema["pattern"], Dialect.ECMA)
    by_name = schema.get("patternProperties")
    if by_name:
        renamed = {rewrite(name, Dialect.ECMA): sub for name, sub in by_name.items()}
        if len(renamed) != len(by_name):
            raise ValueError("two patternProperties have the same meaning")
        schema["patternProperties"] = renamed


def _replace_format(schema: dict[str, Any]) -> None:
    pattern = PATTERNS.get(schema.get("format", ""))
    if pattern is None:
        return
    del schema["format"]
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": pattern}]
    else:
        schema["pattern"] = pattern
