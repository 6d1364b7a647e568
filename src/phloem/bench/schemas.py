"""Schemas of the ``json`` workload: the shapes people extract, small and bounded, so that any answer ends within about 200 tokens."""

from __future__ import annotations

from typing import Any


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def _integer(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _list(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": _object(name=_text(20), age=_integer(0, 120), email=_text(24), member={"type": "boolean"}),
    "support ticket": _object(
        title=_text(24), priority=_one_of("low", "normal", "high"), open={"type": "boolean"}, tags=_list(_text(10), 3)
    ),
    "weather report": _object(
        city=_text(16),
        celsius=_integer(-50, 60),
        sky=_one_of("clear", "cloudy", "rain", "snow"),
        wind_kmh=_integer(0, 300),
    ),
    "product": _object(
        name=_text(20), cents=_integer(1, 999999), stock=_integer(0, 9999), color=_one_of("red", "green", "blue")
    ),
    "recipe": _object(dish=_text(20), minutes=_integer(1, 600), steps=_list(_text(24), 3)),
    "meeting": _object(
        topic=_text(20), hour=_integer(0, 23), guests=_list(_object(name=_text(12), role=_one_of("host", "guest")), 2)
    ),
}
