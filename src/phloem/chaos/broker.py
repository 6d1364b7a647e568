"""Faults of the broker: away for a while, or gone and back at once."""

from __future__ import annotations

import anyio
from anyio.abc import TaskGroup

from .kills import usual
from .outcome import Aim
from .requests import plain
from .row import Result
from .scene import Scene
from .stream import Stream, follow
from .wishes import Wishes

AWAY_S = 5.0
PROBE_EACH_S = 0.5
FIRST_PROBE_S = 0.1
ANSWER_S = 1.0
UNAVAILABLE = 503
PROBE_INDEX = 200_000


async def broker_stopped(scene: Scene, wishes: Wishes) -> Result:
    """Stopped, and started empty after some seconds; meanwhile others ask."""
    deployment = scene.deployment
    probes: list[Stream] = []

    async def strike() -> None:
        await deployment.terminate(deployment.broker)
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(AWAY_S):
                await _ask_on(scene, probes, tasks)
            tasks.cancel_scope.cancel()
        await deployment.start(deployment.broker)

    seen = await scene.disturbed(strike)
    slow = [probe for probe in probes if _is_late(probe)]
    told = ", ".join(f"{probe.status} after {probe.answered_at - probe.sent_at:.2f} s" for probe in slow)
    aim = Aim(f"meanwhile 503 within {ANSWER_S:g} s", bool(probes) and not slow, told)
    return usual(scene, seen, aim)


async def broker_restarted(scene: Scene, wishes: Wishes) -> Result:
    """Every connection breaks at once, and the broker is back right away."""
    deployment = scene.deployment

    async def strike() -> None:
        await deployment.kill(deployment.broker)
        await deployment.start(deployment.broker)

    return usual(scene, await scene.disturbed(strike))


async def _ask_on(scene: Scene, probes: list[Stream], tasks: TaskGroup) -> None:
    """A new request each half second, the last early enough to be answered before the broker is back."""
    await anyio.sleep(FIRST_PROBE_S)
    for index in range(int((AWAY_S - FIRST_PROBE_S - ANSWER_S) / PROBE_EACH_S)):
        probe = Stream(plain(PROBE_INDEX + index, 4, scene.seed, "Is anybody there?"))
        probes.append(probe)
        tasks.start_soon(follow, scene.client, probe)
        await anyio.sleep(PROBE_EACH_S)
    await anyio.sleep_forever()


def _is_late(probe: Stream) -> bool:
    return probe.status != UNAVAILABLE or probe.answered_at - probe.sent_at > ANSWER_S
