"""Faults of clients: all gone at once, or far too many."""

from __future__ import annotations

import re
from bisect import bisect_left
from statistics import median

import anyio
from anyio.abc import TaskGroup

from phloem.bench.http1 import CONNECT_S

from . import gauges
from .figures import Figures
from .outcome import Aim
from .requests import plain
from .row import Result
from .scene import GIVEN_BACK_S, Scene, over
from .stream import Stream, follow
from .wishes import Wishes

LONG_REQUESTS, LONG_TOKENS = 200, 10_000
CONNECTIONS = 500
USUAL_STREAMS = 64
"""With fewer streams there are fewer clients and connections as well."""
LEAVE_S = 0.5
BEGIN_S = 20.0
"""How long it may take until all of them are in."""
LOOK_S = 0.05
NEXT_S = 1.0
NEXT_TOKENS = 4
CLIENT_INDEX = 300_000

FLOOD_RATE = 500.0
"""Requests per second: beyond what two workers of the tiny model serve on a small machine."""
FLOOD_PROMPT, FLOOD_TOKENS = 1200, 2
"""Bytes and tokens. Long prompts that differ from their first page on, short answers: the device can't keep up, rather than those who hand on
tokens."""
FLOOD_S = 600.0
REFUSAL_S = 0.050
OVERTAKEN = 64
"""By how many that came later a request may be overtaken: the rows of a worker, whose prompts advance side by side."""
REFUSAL = re.compile(r"POST /generate (?:429|503) (?:\([^)]*\) )?([0-9.]+) ms")


async def clients_gone(scene: Scene, wishes: Wishes) -> Result:
    """Many long requests whose clients all leave, and many connections that say nothing; who comes next is served at once."""
    share = min(1.0, wishes.streams / USUAL_STREAMS)
    clients, connections = round(LONG_REQUESTS * share), round(CONNECTIONS * share)
    live = await _come_and_leave(scene, clients)
    left_at = anyio.current_time()
    await _knock(scene, connections)
    following = Stream(plain(CLIENT_INDEX - 1, NEXT_TOKENS, scene.seed, "The next one"))
    with anyio.move_on_after(GIVEN_BACK_S):
        await follow(scene.client, following)
    await over([following], 0)
    left = await gauges.until_nothing_held(scene.client, GIVEN_BACK_S)
    took_s = following.over_at - following.sent_at
    figures = Figures(
        requests=clients + 1,
        ended=int(following.ended),
        refused=int(following.refused),
        failed=int(following.failed),
        recovered_s=anyio.current_time() - left_at if left == {} else None,
    )
    aims = [
        Aim(f"{clients} live, all leave", live == clients, f"{live:g}"),
        Aim(
            f"after {connections} connections next answered in {NEXT_S:g} s",
            following.ended and took_s <= NEXT_S,
            f"{took_s:.2f} s",
        ),
        Aim(f"gauges zero in {GIVEN_BACK_S:g} s", left == {}, "" if not left else ", ".join(left)),
    ]
    return Result(figures, aims, [following])


async def _come_and_leave(scene: Scene, clients: int) -> float:
    """All clients come, and leave `LEAVE_S` after the last of them is in. Returns how many requests were live then."""
    streams = [
        Stream(plain(CLIENT_INDEX + index, LONG_TOKENS, scene.seed, f"A very long story, number {index}"))
        for index in range(clients)
    ]
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(follow, scene.client, stream)
        live = await _until_live(scene, clients)
        await anyio.sleep(LEAVE_S)
        tasks.cancel_scope.cancel()
    return live


async def _until_live(scene: Scene, requests: int) -> float:
    """How many requests the gateway has, as soon as these are all in, or after a while."""
    live = 0.0
    with anyio.move_on_after(BEGIN_S):
        while live < requests:
            live = gauges.total(await gauges.scrape(scene.client), "phloem_gateway_requests_live")
            await anyio.sleep(LOOK_S)
    return live


async def _knock(scene: Scene, connections: int) -> None:
    """Open and close connections, all at the same time."""

    async def one() -> None:
        try:
            with anyio.fail_after(CONNECT_S):
                stream = await anyio.connect_tcp(scene.client.host, scene.client.port)
            await anyio.aclose_forcefully(stream)
        except (OSError, TimeoutError):
            pass  # refused is closed as well

    async with anyio.create_task_group() as tasks:
        for _ in range(connections):
            tasks.start_soon(one)


async def flood(scene: Scene, wishes: Wishes) -> Result:
    """Far more than can be served, at a steady rate: a queue's worth waits its turn, the rest is told so quickly.

    One worker is left for it, so that a small machine has a core for those who refuse.
    """
    for name in scene.deployment.workers[1:]:
        await scene.deployment.terminate(name)
    await scene.whole(workers=1)
    streams = [
        Stream(plain(CLIENT_INDEX + index, FLOOD_TOKENS, scene.seed, _unlike_others(index), streamed=False))
        for index in range(wishes.flood)
    ]
    log = scene.deployment.log(scene.deployment.gateways[0])
    begin = log.stat().st_size
    async with anyio.create_task_group() as tasks:
        await _send_steadily(scene, streams, tasks)
        await over(streams, FLOOD_S)
        tasks.cancel_scope.cancel()
    figures = scene.count(streams)
    refusals = refusal_times(log.read_bytes()[begin:].decode("utf-8", "replace"))
    waited_s = median(refusals) if refusals else 0.0
    overtaken = overtaking([stream for stream in streams if stream.ended])
    aims = [
        Aim("others 429 or 503", figures.failed == 0),
        Aim(f"{wishes.queue:,} served", figures.ended >= wishes.queue, f"{figures.ended:,}"),
        Aim(
            f"refused in {REFUSAL_S * 1e3:g} ms (median)",
            bool(refusals) and waited_s <= REFUSAL_S,
            f"{waited_s * 1e3:.1f} ms",
        ),
        Aim(f"overtaken by {OVERTAKEN} at most", overtaken <= OVERTAKEN, f"{overtaken}"),
    ]
    return Result(figures, aims, streams)


def _unlike_others(index: int) -> str:
    """A prompt whose first page is no other's, so that nothing of it is cached and its turn is that of its arrival."""
    return f"{index * 7919 % 100_003:06d} " * (FLOOD_PROMPT // 7)


async def _send_steadily(scene: Scene, streams: list[Stream], tasks: TaskGroup) -> None:
    start = anyio.current_time()
    for index, stream in enumerate(streams):
        await anyio.sleep_until(start + index / FLOOD_RATE)
        tasks.start_soon(follow, scene.client, stream)


def refusal_times(log: str) -> list[float]:
    """Seconds from a whole head to the last byte of each refusal, as the gateway's log lines say. (A client beside it would measure itself.)"""
    return [float(found[1]) / 1e3 for found in REFUSAL.finditer(log)]


def overtaking(served: list[Stream]) -> int:
    """The most that were sent after a request and answered before it. ``served`` is in order of sending."""
    answered: list[float] = []  # of those that were sent later, in order
    worst = 0
    for stream in reversed(served):
        place = bisect_left(answered, stream.over_at)
        worst = max(worst, place)
        answered.insert(place, stream.over_at)
    return worst
