"""What an idle deployment has open: descriptors and tasks of each process, subscriptions at the broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio

from phloem.bench.http1 import Client
from phloem.up.ports import LOOPBACK

from . import gauges, vitals
from .deployment import Deployment

LOOK_S = 1.0
TASKS = "phloem_bus_tasks"


@dataclass(frozen=True, slots=True)
class Standing:
    """By name of an instance, or of a connection for ``subscriptions``."""

    descriptors: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[str, int] = field(default_factory=dict)

    def differences(self, now: Standing) -> Iterator[str]:
        """What is not as it was, in words."""
        for what in ("descriptors", "tasks", "subscriptions"):
            before, after = getattr(self, what), getattr(now, what)
            for name in sorted(before.keys() | after.keys()):
                if before.get(name, 0) != after.get(name, 0):
                    yield f"{name} has {after.get(name, 0)} {what}, had {before.get(name, 0)}"

    def __str__(self) -> str:
        return ", ".join(
            f"{sum(counts.values())} {what}"
            for what, counts in (
                ("descriptors", self.descriptors), ("tasks", self.tasks), ("subscriptions", self.subscriptions),
            )
        )  # fmt: skip


async def standing(deployment: Deployment) -> Standing:
    """As it is now. Every process must be running."""
    names = (*deployment.services, deployment.broker)
    return Standing(
        {name: vitals.descriptors(deployment.pid(name)) for name in names},
        {name: await _tasks(deployment, name) for name in deployment.services},
        await _subscriptions(deployment),
    )


async def settled(deployment: Deployment, timeout_s: float) -> Standing:
    """Once two looks in a row see the same, or after ``timeout_s``."""
    found = await standing(deployment)
    with anyio.move_on_after(timeout_s):
        while True:
            await anyio.sleep(LOOK_S)
            before, found = found, await standing(deployment)
            if before == found:
                break
    return found


async def until_as_before(deployment: Deployment, before: Standing, timeout_s: float) -> list[str]:
    """What still differs from ``before`` after ``timeout_s``; empty as soon as nothing does."""
    left = list(before.differences(await standing(deployment)))
    with anyio.move_on_after(timeout_s):
        while left:
            await anyio.sleep(LOOK_S)
            left = list(before.differences(await standing(deployment)))
    return left


async def _tasks(deployment: Deployment, name: str) -> int:
    url = deployment.url if name in deployment.gateways else deployment.metrics_url(name)
    client = Client(url)
    samples = await gauges.scrape(client)
    await client.aclose()
    return int(samples.get(TASKS, 0))


async def _subscriptions(deployment: Deployment) -> dict[str, int]:
    """From the monitoring port of nats-server."""
    port = deployment.instances[deployment.broker].environment["NATS_HTTP_PORT"]
    client = Client(f"http://{LOOPBACK}:{port}")
    _, text = await gauges.fetch(client, "/connz?auth=1&limit=1024")
    await client.aclose()
    counts: Counter[str] = Counter()
    for connection in json.loads(text or "{}").get("connections", ()):
        counts[connection.get("authorized_user") or connection.get("name") or "?"] += connection["subscriptions"]
    return dict(counts)
