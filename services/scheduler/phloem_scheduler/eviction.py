"""Which unused copy goes first: the one with the smallest value.

Values change only while a copy is locked (that is when it is used), so a place in the order stays right until the copy is offered again.
"""

from __future__ import annotations

from collections.abc import Callable

from .node import Copy

Value = tuple[int, ...]

EVICTION: dict[str, Callable[[Copy], Value]] = {
    "lru": lambda copy: (copy.last_use,),
    "lfu": lambda copy: (copy.hits, copy.last_use),
    "slru": lambda copy: (int(copy.hits > 0), copy.last_use),  # found again at least once = protected
    "fifo": lambda copy: (copy.created,),
    "mru": lambda copy: (-copy.last_use,),
    "filo": lambda copy: (-copy.created,),
    "priority": lambda copy: (copy.priority, copy.last_use),
}
