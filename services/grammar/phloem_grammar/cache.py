"""A least-recently-used map bounded by cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """Keeps the values last asked for, their summed cost at most ``capacity``.

    Args:
        capacity: bound of the sum, in ``cost``'s unit.
        cost: of one value; a value that alone exceeds ``capacity`` is not kept.
    """

    def __init__(self, capacity: int, cost: Callable[[V], int] = lambda _: 1) -> None:
        self.capacity = capacity
        self.used = 0
        self._cost = cost
        self._values: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> V | None:
        """The value, which becomes the most recent, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: str, value: V) -> None:
        """Keep ``value`` and drop the least recent ones that no longer fit."""
        old = self._values.pop(key, None)
        if old is not None:
            self.used -= self._cost(old)
        cost = self._cost(value)
        if cost > self.capacity:
            return
        self._values[key] = value
        self.used += cost
        while self.used > self.capacity:
            _, dropped = self._values.popitem(last=False)
            self.used -= self._cost(dropped)
