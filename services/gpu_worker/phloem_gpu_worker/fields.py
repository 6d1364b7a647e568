"""What a model's files state about it: of the right type and within reason, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phloem_model.errors import shown

from .errors import UnsupportedModel

MOST = 1 << 24
"""No size of a model is larger: what is comes from a damaged file, and would ask for absurd memory."""
_LARGEST = 3e38
"""Beyond this a number is infinite in float32, in which it is used."""
_ABSENT = object()


class Fields:
    """Named values that somebody else wrote.

    Args:
        values: by name; None counts as absent.
        where: what holds them, as errors name it.
        prefix: what the file puts before each name.

    Raises (its methods):
        UnsupportedModel: a value is missing, of another type, or out of bounds; names it.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def whole(self, name: str, default: Any = _ABSENT, *, least: int = 1, most: int = MOST) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}", value)
        return value

    def number(self, name: str, default: Any = _ABSENT, *, zero: bool = False) -> float:
        """A positive finite number, or 0 with ``zero``."""
        value = self._value(name, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if real and (value > 0 or (zero and value == 0)) and value < _LARGEST:
            return float(value)
        raise self._wrong(name, "a number" if zero else "a number above 0", value)

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: Any = _ABSENT) -> str:
        """A word."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def texts(self, name: str, count: int) -> list[str] | None:
        """``count`` words, or None if absent."""
        value = self._values.get(self._prefix + name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or not all(isinstance(one, str) for one in value):
            raise self._wrong(name, f"{count} texts", value)
        return value

    def part(self, name: str) -> Fields:
        """The values below a name; none if it is absent."""
        value = self._values.get(self._prefix + name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value or {}, f"{self._where}: {self._prefix}{name}")

    def has(self, name: str) -> bool:
        """Whether there is such a value."""
        return self._values.get(self._prefix + name) is not None

    @property
    def nested(self) -> bool:
        """Whether any of the values are values by name themselves."""
        return any(isinstance(value, dict) for value in self._values.values())

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(self._prefix + name)
        if value is not None:
            return value
        if default is _ABSENT:
            raise UnsupportedModel(f"{self._where}: {self._prefix}{name} is missing")
        return default

    def _wrong(self, name: str, wanted: str, value: Any) -> UnsupportedModel:
        return UnsupportedModel(f"{self._where}: {self._prefix}{name} must be {wanted}, not {shown(value)}")
