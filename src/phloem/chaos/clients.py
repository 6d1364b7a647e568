"""Faults of clients: all gone at once, or far too many."""

from __future__ import annotations

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
from .stream import REFUSED, Stream, follow
from .wishes import Wishes

LONG_REQUESTS, LONG_TOKENS = 200, 10_000
LEAVE_S = 0.5
CONNECTIONS = 500
NEXT_S = 1.0
NEXT_TOKENS = 4
CLIENT_INDEX = 300_000

FLOOD_RATE = 500.0
"""Requests per second: beyond what two workers of the tiny model serve on a small machine."""
FLOOD_TOKENS = 64
FLOOD_S = 600.0
REFUSAL_S = 0.050
OVERTAKEN_S = 1.0
"""By how much a request may see its first token after one that came later: some steps of another worker."""


async def clients_gone(scene: Scene, wishes: Wishes) -> Result:
    """Many long requests whose clients all leave, and many connections that say nothing; who comes next is served at once."""
    with anyio.move_on_after(LEAVE_S):
        async with anyio.create_task_group() as tasks:
            for index in range(LONG_REQUESTS):
                request = plain(CLIENT_INDEX + index, LONG_TOKENS, scene.seed, f"A very long story, number {index}")
                tasks.start_soon(follow, scene.client, Stream(request))
    left_at = anyio.current_time()
    await _knock(scene)
    following = Stream(plain(CLIENT_INDEX - 1, NEXT_TOKENS, scene.seed, "The next one"))
    with anyio.move_on_after(GIVEN_BACK_S):
        await follow(scene.client, following)
    await over([following], 0)
    left = await gauges.until_nothing_held(scene.client, GIVEN_BACK_S)
    took_s = following.over_at - following.sent_at
    figures = Figures(
        requests=LONG_REQUESTS + 1,
        ended=int(following.ended),
        refused=int(following.refused),
        failed=int(following.failed),
        recovered_s=anyio.current_time() - left_at if left == {} else None,
    )
    aims = [
        Aim(f"next answered in {NEXT_S:g} s", following.ended and took_s <= NEXT_S, f"{took_s:.2f} s"),
        Aim(f"gauges zero in {GIVEN_BACK_S:g} s", left == {}, "" if not left else ", ".join(left)),
    ]
    return Result(figures, aims, [following])


async def _knock(scene: Scene) -> None:
    """Open and close connections, all at the same time."""

    async def one() -> None:
        try:
            with anyio.fail_after(CONNECT_S):
                stream = await anyio.connect_tcp(scene.client.host, scene.client.port)
            await anyio.aclose_forcefully(stream)
        except (OSError, TimeoutError):
            pass  # refused is closed as well

    async with anyio.create_task_group() as tasks:
        for _ in range(CONNECTIONS):
            tasks.start_soon(one)


async def flood(scene: Scene, wishes: Wishes) -> Result:
    """Far more than can be served, at a steady rate: a queue's worth waits its turn, the rest is told so quickly."""
    streams = [
        Stream(plain(CLIENT_INDEX + index, FLOOD_TOKENS, scene.seed, f"{index * 7919 % 100_003:06d} and so on"))
        for index in range(wishes.flood)
    ]
    async with anyio.create_task_group() as tasks:
        await _send_steadily(scene, streams, tasks)
        await over(streams, FLOOD_S)
        tasks.cancel_scope.cancel()
    figures = scene.count(streams)
    refusals = [stream.answered_at - stream.sent_at for stream in streams if stream.status in REFUSED]
    waited_s = median(refusals) if refusals else 0.0
    overtaken_s = overtaking([stream for stream in streams if stream.ended])
    aims = [
        Aim("others 429 or 503", figures.failed == 0),
        Aim(f"{wishes.queue:,} served", figures.ended >= wishes.queue, f"{figures.ended:,}"),
        Aim(
            f"refused in {REFUSAL_S * 1e3:g} ms (median)",
            bool(refusals) and waited_s <= REFUSAL_S,
            f"{waited_s * 1e3:.1f} ms",
        ),
        Aim(f"overtaken by {OVERTAKEN_S:g} s at most", overtaken_s <= OVERTAKEN_S, f"{overtaken_s:.2f} s"),
    ]
    return Result(figures, aims, streams)


async def _send_steadily(scene: Scene, streams: list[Stream], tasks: TaskGroup) -> None:
    start = anyio.current_time()
    for index, stream in enumerate(streams):
        await anyio.sleep_until(start + index / FLOOD_RATE)
        tasks.start_soon(follow, scene.client, stream)


def overtaking(served: list[Stream]) -> float:
    """The longest time by which a request had its first token after one that was sent later. ``served`` is in order of sending."""
    worst, soonest_later = 0.0, float("inf")
    for stream in reversed(served):
        first = stream.arrivals[0]
        worst = max(worst, first - soonest_later)
        soonest_later = min(soonest_later, first)
    return worst
