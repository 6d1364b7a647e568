"""Where faults happen: the deployment, its clients, and what they saw of undisturbed streams."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from phloem.bench.http1 import Client

from . import gauges
from .deployment import Deployment
from .errors import NotReady
from .figures import Figures, Texts, figures
from .outcome import Aim
from .requests import Request
from .sight import Lookout, Sighting
from .stream import Stream, follow

FLOWING_TOKENS = 8
"""A fault begins once every stream has at least so many; how many decides the seed."""
EARLY = 4
"""It begins within this part of the streams, so that they have most of their way before them."""
STREAMS_S = 120.0
"""How long streams may take: twice what a gateway waits for a recovery."""
READY_S = 60.0
LOOK_S = 0.01
GIVEN_BACK_S = 5.0
"""How long it may take until nothing is held any more."""


@dataclass(slots=True)
class Seen:
    """Streams under a fault."""

    streams: list[Stream]
    struck_at: float
    sighting: Sighting | None


class Scene:
    """Passed to each fault in turn.

    Args:
        tokens: of each stream, about.
        exact: texts are the same whatever happens, but for ties.
    """

    def __init__(
        self, deployment: Deployment, requests: Sequence[Request], *, tokens: int, exact: bool, seed: int
    ) -> None:
        self.deployment = deployment
        self.client = Client(deployment.url)
        self.requests = requests
        self.seed = seed
        self.usual_gap_s = 0.0
        self._tokens = tokens
        self._rng = random.Random(seed)
        self._exact = exact
        self._reference: Texts = {}

    # --- Streams ----------------------------------------------------------------------------------------------------

    async def undisturbed(self) -> list[Stream]:
        """All streams at once, without a fault."""
        streams = [Stream(request) for request in self.requests]
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(follow, self.client, stream)
            await over(streams)
            tasks.cancel_scope.cancel()
        return streams

    def remember(self, streams: Sequence[Stream]) -> None:
        """Take these as what an answer is to be."""
        self._reference = {stream.request.index: (stream.ids, stream.text) for stream in streams}

    async def disturbed(self, strike: Callable[[], Awaitable[None]], requests: Sequence[Request] | None = None) -> Seen:
        """Open streams, and ``strike`` once all of them flow. Returns when the last is over.

        Args:
            requests: default: the usual ones.
        """
        streams = [Stream(request) for request in (self.requests if requests is None else requests)]
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(follow, self.client, stream)
            await flowing(streams, self._rng.randrange(FLOWING_TOKENS, max(self._tokens // EARLY, FLOWING_TOKENS + 1)))
            lookout = Lookout({name: self.deployment.log(name) for name in self.deployment.services})
            tasks.start_soon(lookout.watch)
            struck_at = anyio.current_time()
            await strike()
            await over(streams)
            tasks.cancel_scope.cancel()
        return Seen(streams, struck_at, lookout.first)

    def measure(self, seen: Seen) -> Figures:
        """The figures of streams under a fault."""
        noticed_at = None if seen.sighting is None else seen.sighting.at
        return self.count(seen.streams, struck_at=seen.struck_at, noticed_at=noticed_at)

    def count(
        self, streams: Sequence[Stream], *, struck_at: float | None = None, noticed_at: float | None = None
    ) -> Figures:
        """See `figures`."""
        return figures(
            streams,
            self._reference if self._exact else None,
            struck_at=struck_at,
            noticed_at=noticed_at,
            usual_gap_s=self.usual_gap_s,
        )

    # --- The deployment ---------------------------------------------------------------------------------------------

    async def leader(self) -> str:
        """The scheduler that has the requests; some must be running."""
        return await self.busiest(self.deployment.schedulers, "phloem_scheduler_requests_live")

    async def busiest(self, names: Sequence[str], gauge: str) -> str:
        """Of these instances the one whose own ``gauge`` is highest; the first of equals."""
        load: dict[str, float] = {}
        for name in names:
            client = Client(self.deployment.metrics_url(name))
            load[name] = gauges.total(await gauges.scrape(client), gauge)
            await client.aclose()
        return max(load, key=lambda name: load[name])

    async def whole(self, workers: int | None = None) -> None:
        """Everything that was ended runs again, and the gateway says that it serves with all ``workers`` (default: all). Raises `NotReady`."""
        if workers is None:
            await self.deployment.mend()
            workers = len(self.deployment.workers)
        if not await gauges.until_healthy(self.client, READY_S):
            raise NotReady(f"/health did not say 200 within {READY_S:g} s")
        if not await gauges.until_workers(self.client, workers, READY_S):
            raise NotReady(f"the scheduler did not have {workers} workers within {READY_S:g} s")

    async def afterwards(self) -> list[Aim]:
        """Mend everything; then nothing may be held, and nobody may have ended who was not made to. Raises `NotReady`."""
        surprises, self.deployment.surprises = self.deployment.surprises, []
        await self.whole()
        left = await gauges.until_nothing_held(self.client, GIVEN_BACK_S)
        told = (
            "the gauges don't tell" if left is None else ", ".join(f"{name} {value:g}" for name, value in left.items())
        )
        ended = ", ".join(f"{one.name} with code {one.code}" for one in surprises)
        aims = [Aim("all given back", left == {}, told)]
        return aims if not surprises else [*aims, Aim("nobody else ends", False, ended)]


async def flowing(streams: Sequence[Stream], tokens: int) -> None:
    """Wait until every stream has so many tokens, or is over, for `STREAMS_S` at most."""
    await until(lambda: all(len(stream.ids) >= tokens or stream.over_at for stream in streams), STREAMS_S)


async def over(streams: Sequence[Stream], timeout_s: float = STREAMS_S) -> None:
    """Wait until every stream is over; those that are not in time have failed."""
    await until(lambda: all(stream.over_at for stream in streams), timeout_s)
    for stream in streams:
        if not stream.over_at:
            stream.over_at, stream.trouble = anyio.current_time(), f"no end within {timeout_s:g} s"


async def until(reached: Callable[[], bool], timeout_s: float) -> None:
    """Return once something is so, or time is up. It looks again and again: streams tell nobody."""
    with anyio.move_on_after(timeout_s):
        while True:
            if reached():
                return
            await anyio.sleep(LOOK_S)
