"""When garbage is collected in a service that has its process to itself and promises to be quick.

A full collection looks at every object there is, and nothing else runs meanwhile: some 50 ms in a scheduler or a gateway with 10,000 requests,
half a second in a scheduler with ten times as many; the interpreter starts one whenever a quarter more objects have come. Our services leave
no cycles behind, so what they let go of is free without; only the libraries around them may leave some. So full collections are made while
nothing is live, or else rarely, and what the start has made is never looked at.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

LOOK_S = 1.0
IDLE_S = 60.0
"""Between two full collections while nothing is live."""
NEVER = 1 << 30
"""Collections of the middle generation before the interpreter makes a full one of its own accord."""


def settling(tell: Callable[[bool], None]) -> Callable[[bool], None]:
    """Passes on whether the service is ready. The first time that it is, what its start has made is taken out of garbage collection for good:
    modules, a model's vocabulary."""
    settled = False

    def told(ready: bool) -> None:
        nonlocal settled
        if ready and not settled:
            settled = True
            gc.collect()
            gc.freeze()
        tell(ready)

    return told


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


async def collect_when_idle(idle: Callable[[], bool], busy_s: float) -> None:
    """Keep full collections out of the way until cancelled. What the start has made stays as long as the process does.

    Args:
        idle: whether nothing is live.
        busy_s: between two full collections while something always is.
    """
    with only_young():
        last = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_S)
            if anyio.current_time() - last >= (IDLE_S if idle() else busy_s):
                gc.collect()
                last = anyio.current_time()
