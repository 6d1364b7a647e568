"""Faults of one process: killed, or frozen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from . import gauges
from .outcome import Aim, gap, none_fail, same_text
from .requests import compiled
from .row import Result
from .scene import Scene, Seen
from .stream import Stream, follow
from .wishes import Wishes

SLOTS, STREAMS = "phloem_worker_slots_live", "phloem_tokenizer_streams_live"
"""What a worker and a tokenizer have, by their own word."""
WORKER_GAP_S = 3.0
SCHEDULER_GAP_S = 5.0
TOKENIZER_GAP_S = 3.0
AFTER_RESTART_S = 2.0
"""How soon after its restart the only worker's streams flow again."""
FROZEN_S = 5.0
COMPILES = 20
COMPILED_FIELDS = 250
"""Enough that a compile takes a good part of a second, so that most of them wait."""
MOST_WAITING = COMPILES // 2
COMPILE_INDEX = 100_000
UNNOTICED_S = 1.0
"""A silence that nobody who reads along would call a pause."""


def usual(scene: Scene, seen: Seen, *aims_of_gap: Aim) -> Result:
    """What most faults aim at."""
    figures = scene.measure(seen)
    said = "" if seen.sighting is None else f"{seen.sighting.who}: {seen.sighting.line}"
    return Result(figures, [none_fail(figures), same_text(figures), *aims_of_gap], seen.streams, said)


async def _killed(scene: Scene, choose: Callable[[], Awaitable[str]]) -> Seen:
    """Streams while the instance that ``choose`` finds is killed and, as a supervisor does, started again."""

    async def strike() -> None:
        name = await choose()
        await scene.deployment.kill(name)
        await scene.deployment.restart_soon(name)

    return await scene.disturbed(strike)


async def worker_killed(scene: Scene, wishes: Wishes) -> Result:
    """The busier of two workers, in the middle of its streams."""
    seen = await _killed(scene, partial(scene.busiest, scene.deployment.workers, SLOTS))
    return usual(scene, seen, gap(scene.measure(seen), WORKER_GAP_S))


async def only_worker_killed(scene: Scene, wishes: Wishes) -> Result:
    """All other workers have left; the one there is dies and comes back."""
    deployment = scene.deployment
    only, *others = deployment.workers
    for name in others:
        await deployment.terminate(name)
    await scene.whole(workers=1)
    back_at = 0.0

    async def strike() -> None:
        nonlocal back_at
        await deployment.kill(only)
        await deployment.restart_soon(only)
        await deployment.ready(only)
        back_at = anyio.current_time()

    seen = await scene.disturbed(strike)
    took_s = back_at - seen.struck_at
    text = f"gap <= its restart ({took_s:.1f} s) + {AFTER_RESTART_S:g} s"
    return usual(scene, seen, gap(scene.measure(seen), took_s + AFTER_RESTART_S, text))


async def scheduler_killed(scene: Scene, wishes: Wishes) -> Result:
    """The leader; the standby takes over, and the killed one comes back to stand by."""
    seen = await _killed(scene, scene.leader)
    return usual(scene, seen, gap(scene.measure(seen), SCHEDULER_GAP_S))


async def tokenizer_killed(scene: Scene, wishes: Wishes) -> Result:
    """The busier of two, with its share of the streams."""
    seen = await _killed(scene, partial(scene.busiest, scene.deployment.tokenizers, STREAMS))
    return usual(scene, seen, gap(scene.measure(seen), TOKENIZER_GAP_S))


async def worker_frozen(scene: Scene, wishes: Wishes) -> Result:
    """The busier of two workers is stopped for a while and then goes on, as if nothing had been."""
    deployment = scene.deployment

    async def strike() -> None:
        name = await scene.busiest(deployment.workers, SLOTS)
        deployment.freeze(name)
        await anyio.sleep(FROZEN_S)
        deployment.thaw(name)

    return usual(scene, await scene.disturbed(strike))


async def grammar_killed(scene: Scene, wishes: Wishes) -> Result:
    """While compiles wait for it; free streams go on beside them."""
    deployment = scene.deployment
    (name, *_) = deployment.grammars
    asked = [Stream(compiled(COMPILE_INDEX + index, scene.seed, COMPILED_FIELDS)) for index in range(COMPILES)]
    waiting = 0.0

    async def strike() -> None:
        nonlocal waiting
        async with anyio.create_task_group() as tasks:
            for stream in asked:
                tasks.start_soon(follow, scene.client, stream)
            waiting = await _until_compiles_wait(scene)
            await deployment.kill(name)
            await deployment.restart_soon(name)

    free = [request for request in scene.requests if not request.constrained]
    seen = await scene.disturbed(strike, free)
    unnoticed = gap(scene.count(seen.streams), UNNOTICED_S, f"free streams: gap <= {UNNOTICED_S:g} s")
    seen.streams += asked
    aims = [Aim(f"{MOST_WAITING} or more wait", waiting >= MOST_WAITING, f"{waiting:g}"), unnoticed]
    return usual(scene, seen, *aims)


async def _until_compiles_wait(scene: Scene) -> float:
    """Requests that wait for a verdict, as soon as that are many, or after a while."""
    most = 0.0
    with anyio.move_on_after(2.0):
        while most < MOST_WAITING:
            most = gauges.total(await gauges.scrape(scene.client), "phloem_scheduler_requests_waiting_grammar")
            await anyio.sleep(0.01)
    return most
