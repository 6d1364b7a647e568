"""What happens to every deployment one day: all its processes are restarted in turn, and its disk is full."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from . import gauges
from .kills import usual
from .outcome import Aim, none_fail, same_text
from .requests import plain
from .row import Result
from .scene import READY_S, Scene
from .stream import Stream, follow
from .wishes import Wishes

CLIENTS = 16
"""Streams at any time during a rolling restart."""
RETRY_S = 0.2
ONE_MORE_INDEX = 400_000


class _Traffic:
    """Clients that ask again and again. While ``closed`` they send nothing new, as behind a load balancer."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._next = 0
        self.streams: list[Stream] = []
        self.refused = 0
        self.closed = False
        self.ending = False

    async def client(self) -> None:
        while not self.ending:
            if self.closed:
                await anyio.sleep(RETRY_S)
                continue
            request = self._scene.requests[self._next % len(self._scene.requests)]
            self._next += 1
            stream = Stream(request)
            self.streams.append(stream)
            await follow(self._scene.client, stream)
            if stream.refused:
                await anyio.sleep(RETRY_S)


async def rolling_restart(scene: Scene, wishes: Wishes) -> Result:
    """SIGTERM to each process of the five services in turn; the next once it is back and ready."""
    deployment = scene.deployment
    traffic = _Traffic(scene)
    codes: dict[str, int] = {}
    async with anyio.create_task_group() as tasks:
        for _ in range(min(CLIENTS, len(scene.requests))):
            tasks.start_soon(traffic.client)
        for name in deployment.services:
            traffic.closed = name in deployment.gateways
            codes[name] = await deployment.terminate(name)
            await deployment.start(name)
            await deployment.ready(name)
            await gauges.until_healthy(scene.client, READY_S)
            traffic.closed = False
        traffic.ending = True
    bad = ", ".join(f"{name} with {code}" for name, code in codes.items() if code)
    figures = scene.count(traffic.streams)
    aims = [none_fail(figures, refused=True), same_text(figures), Aim("all end with 0", not bad, bad)]
    return Result(figures, aims, traffic.streams)


async def log_disk_full(scene: Scene, wishes: Wishes) -> Result:
    """No log file can grow while streams run; afterwards logs are written again."""
    if sys.platform != "linux":
        return Result(scene.count([]), [Aim("only on Linux", True)])
    deployment = scene.deployment
    sizes: dict[str, int] = {}
    grown: list[str] = []

    async def strike() -> None:
        sizes.update({name: deployment.log(name).stat().st_size for name in deployment.services})

    with _limited(scene):
        seen = await scene.disturbed(strike)
        extra = Stream(plain(ONE_MORE_INDEX, 4, scene.seed, "One more"))
        await follow(scene.client, extra)
        grown += [name for name, size in sizes.items() if deployment.log(name).stat().st_size > size]
    before = deployment.log(deployment.gateways[0]).stat().st_size
    afterwards = Stream(plain(ONE_MORE_INDEX + 1, 4, scene.seed, "And another"))
    await follow(scene.client, afterwards)
    seen.streams += [extra, afterwards]
    again = deployment.log(deployment.gateways[0]).stat().st_size > before
    aims = [Aim("nothing was written", not grown, ", ".join(grown)), Aim("then written again", again)]
    return usual(scene, seen, *aims)


@contextmanager
def _limited(scene: Scene) -> Iterator[None]:
    """Every service's files, so its log, can't grow beyond what its log has now: writes fail as on a full disk (EFBIG for ENOSPC)."""
    deployment = scene.deployment
    former = {}
    for name in deployment.services:
        pid, size = deployment.pid(name), deployment.log(name).stat().st_size
        former[name] = (pid, resource.prlimit(pid, resource.RLIMIT_FSIZE))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, former[name][1][1]))
    try:
        yield
    finally:
        for name, (pid, limits) in former.items():
            if deployment.is_running(name, pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
