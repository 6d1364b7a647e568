"""A night in a few minutes: everything that clients do, mixed, while a worker is killed now and then; nothing may grow or be left."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import anyio

from phloem.up.plan import BROKER
from phloem.up.ports import LOOPBACK

from . import gauges, vitals
from .deployment import Deployment
from .growth import WINDOW, Grown, Growth
from .mix import Mix
from .outcome import Aim
from .row import Result
from .scene import GIVEN_BACK_S, Scene
from .standing import settled, until_as_before
from .visits import Visitors
from .wishes import Wishes

SHARE = 1 / 3
"""Of what the deployment manages: its memory is to show what is kept, not what is in flight."""
CLIENTS = 16
"""At once, to find out what it manages."""
MOST_VISITS = 64
"""At once during the soak; beyond, the next visit waits."""
WARM_S = (4.0, 20.0)
"""At least and at most; a tenth of the soak in between."""
FILL_S = 120.0
LOOK_S = 1.0
FILLERS = 4
SAMPLES, SAMPLE_S = 24, 5.0
"""At least so many samples, and at most so many seconds between two."""
KILLS = 8
"""About so many in a soak."""
LEASES_S = 12.0
"""By then the last pin has expired."""
SETTLE_S = 20.0
SLOPE_MB, LEAST_MINUTES = 1.0, 10.0
"""Growth per minute, in a soak of ten minutes or more. A shorter one may grow by as much in all: less of it is known."""


@dataclass(slots=True)
class _Soak:
    scene: Scene
    visitors: Visitors
    mix: Mix
    growth: Growth
    rng: random.Random
    seconds: float

    @property
    def deployment(self) -> Deployment:
        return self.scene.deployment

    # --- Before -----------------------------------------------------------------------------------------------------

    async def fill(self) -> bool:
        """Prompts that share nothing, until the cache is full and evicts (True): before, every new prompt makes the tree larger."""
        done = False

        async def filler() -> None:
            while not done:
                await self.visitors.make(self.mix.filler())

        async with anyio.create_task_group() as tasks:
            for _ in range(FILLERS):
                tasks.start_soon(filler)
            with anyio.move_on_after(FILL_S) as scope:
                await self._evicts()
            done = True
        return not scope.cancelled_caught

    async def _evicts(self) -> None:
        """Return once something had to go to make room."""
        while True:
            if gauges.total(await gauges.scrape(self.scene.client), "phloem_scheduler_evicted_tokens_total"):
                return
            await anyio.sleep(LOOK_S)

    async def warm_up(self) -> float:
        """Visits per second that the deployment manages."""
        least_s, most_s = WARM_S
        seconds = min(max(self.seconds / 10, least_s), most_s)
        begin = anyio.current_time()
        visits = 0

        async def client() -> None:
            nonlocal visits
            while anyio.current_time() < begin + seconds:
                await self.visitors.make(self.mix.visit())
                visits += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS):
                tasks.start_soon(client)
        return visits / (anyio.current_time() - begin)

    async def idle(self) -> gauges.Samples | None:
        """What is held once nobody comes any more and all connections are closed."""
        await self.visitors.aclose()
        left = await gauges.until_nothing_held(self.scene.client, LEASES_S + GIVEN_BACK_S)
        await self.scene.client.aclose()
        return left

    # --- Meanwhile --------------------------------------------------------------------------------------------------

    async def run(self, rate: float) -> int:
        """Visits for so many seconds, at ``rate`` per second on average. Returns how many workers were killed."""
        killed = 0

        async def kill_now_and_then() -> None:
            nonlocal killed
            name = self.deployment.workers[-1]
            while True:
                await anyio.sleep(self.seconds / KILLS * self.rng.uniform(0.6, 1.2))
                with anyio.CancelScope(shield=True):
                    await self.deployment.kill(name)
                    await self.deployment.restart_soon(name)
                    killed += 1
                    await self.deployment.ready(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            tasks.start_soon(kill_now_and_then)
            await self._visit(rate)
            tasks.cancel_scope.cancel()
        return killed

    async def _visit(self, rate: float) -> None:
        """Clients that come at random, whether or not others have been answered. Returns once all have left."""
        slots = anyio.Semaphore(MOST_VISITS)

        async def one() -> None:
            try:
                await self.visitors.make(self.mix.visit())
            finally:
                slots.release()

        end = anyio.current_time() + self.seconds
        next_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            while (next_at := next_at + self.rng.expovariate(rate)) < end:
                await anyio.sleep_until(next_at)
                await slots.acquire()
                tasks.start_soon(one)

    async def _watch(self) -> None:
        while True:
            now = anyio.current_time()
            for name in (*self.deployment.services, self.deployment.broker):
                for label, pid in _family(self.deployment, name):
                    try:
                        self.growth.add(now, label, pid, vitals.resident_mb(pid))
                    except OSError:
                        pass  # it was killed meanwhile
            await anyio.sleep(min(SAMPLE_S, self.seconds / SAMPLES))


async def soak(scene: Scene, wishes: Wishes) -> Result:
    """Fill caches, warm up, count what is open, soak, count again."""
    if sys.platform != "linux":
        return Result(scene.count([]), [Aim("only on Linux", True)])
    minutes = wishes.soak_minutes
    target = f"{LOOPBACK}:{scene.deployment.instances[scene.deployment.gateways[0]].environment['PHLOEM_GRPC_PORT']}"
    it = _Soak(
        scene,
        Visitors(scene.client, target),
        Mix(scene.seed, await _model(scene)),
        Growth(),
        random.Random(scene.seed),
        60 * minutes,
    )
    filled = await it.fill()
    rate = SHARE * await it.warm_up()
    await it.idle()
    before = await settled(scene.deployment, SETTLE_S)
    it.visitors = Visitors(scene.client, target)
    killed = await it.run(rate)
    await scene.whole()
    left = await it.idle()
    different = await until_as_before(scene.deployment, before, SETTLE_S)
    tally = it.visitors.tally
    aims = [
        Aim("0 fail", tally.failed == 0, "; ".join(tally.troubles)),
        Aim("schemas kept, nothing twice", tally.wrong == tally.duplicated == 0),
        small_growth(it.growth, minutes),
        Aim("gauges zero", left == {}, "not told" if left is None else ", ".join(left)),
        Aim("descriptors, tasks, subscriptions as before", not different, "; ".join(different)),
    ]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in tally.kinds.most_common())
    done = f"{minutes:g} minutes, {rate:.1f} visits per second, a worker killed {killed} times: {kinds}"
    start = f"before: {before}; the cache was {'full' if filled else 'not full'}"
    return Result(tally.figures(), aims, lines=(done, start, *told(it.growth)))


async def _model(scene: Scene) -> str:
    """The name by which clients ask for it."""
    _, text = await gauges.fetch(scene.client, "/v1/models")
    return str(json.loads(text)["data"][0]["id"])


def _family(deployment: Deployment, name: str) -> Iterator[tuple[str, int]]:
    """The processes of an instance that runs now: its own, and those that it has started."""
    if not deployment.runs(name):
        return
    pid = deployment.pid(name)
    yield name, pid
    for child in vitals.children(pid):
        yield f"{name}'s child", child


def small_growth(growth: Growth, minutes: float) -> Aim:
    """Of each process of ours and of all together; the broker is not ours, and only shown."""
    most = SLOPE_MB * max(1.0, LEAST_MINUTES / minutes)
    ours = _ours(growth.lived_through())
    total = sum(one.slope for one in ours)
    bad = [f"{one.name} {one.slope:+.2f}" for one in ours if one.slope >= most]
    if total >= most:
        bad.append(f"together {total:+.2f}")
    return Aim(f"memory grows by less than {most:.3g} MB/min", bool(ours) and not bad, ", ".join(bad))


def told(growth: Growth) -> Iterator[str]:
    """A line per process that lived through, their sum, and one for the others of each name."""
    found = growth.lived_through()
    for one in found:
        yield f"{one.name} (pid {one.pid}): {one.slope:+.2f} MB/min, from {one.first_mb:.1f} to {one.last_mb:.1f} MB"
    total = sum(one.slope for one in _ours(found))
    yield f"together, but for {BROKER}: {total:+.2f} MB/min over the last {WINDOW:.0%}"
    for name, most in growth.others():
        yield f"{name}, {len(most)} processes one after the other: at most {', '.join(f'{mb:.0f}' for mb in most)} MB"


def _ours(found: list[Grown]) -> list[Grown]:
    return [one for one in found if not one.name.startswith(BROKER)]
