"""When garbage is collected in a scheduler that has its process to itself.

A full collection looks at every object there is: some 50 ms with 10,000 nodes and as many choices that wait, half a second with ten times as
many, and the interpreter starts one whenever a quarter more objects have come. The core leaves no cycles behind, so what it lets go of is
free without; only the libraries around it may leave some. So full collections are made while nothing is live, or else very rarely.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

LOOK_S = 1.0
IDLE_S = 60.0
"""Between two full collections while nothing is live."""
BUSY_S = 3600.0
"""While something always is."""
NEVER = 1 << 30
"""Collections of the middle generation before the interpreter makes a full one of its own accord."""


@contextmanager
def only_young() -> Iterator[None]:
    """No full collections meanwhile, unless they are asked for. What is there now is not looked at even by those."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds[:2], NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def collect_when_idle(idle: Callable[[], bool]) -> None:
    """Keep full collections out of the way until cancelled. What the start has made stays as long as the process does."""
    with only_young():
        last = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_S)
            if anyio.current_time() - last >= (IDLE_S if idle() else BUSY_S):
                gc.collect()
                last = anyio.current_time()
