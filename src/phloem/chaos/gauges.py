"""What the deployment says of itself: health, and the gauges of what is held."""

from __future__ import annotations

import re

import anyio

from phloem.bench.http1 import BadResponse, Client, ConnectFailed, Disconnected

HELD = re.compile(
    r"phloem_\w+_(slots_live|matchers_live|streams_live|requests_live|locks|pages_used|requests_running|requests_waiting)"
)
"""All of these are zero when nothing goes on."""
LEAST_HELD = 8
"""Fewer of them than this: the scheduler or the tokenizers have not told theirs."""
ASK_S = 5.0
LOOK_S = 0.05

Samples = dict[str, float]


def parse(text: str) -> Samples:
    """Samples of Prometheus' text form, by name with labels."""
    samples: Samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def total(samples: Samples, name: str) -> float:
    """A sample's value, added up over its labels."""
    return sum(value for sample, value in samples.items() if sample.partition("{")[0] == name)


def held(samples: Samples) -> Samples | None:
    """What is held, by name; None if the samples don't tell."""
    known = {name: value for name, value in samples.items() if HELD.fullmatch(name.partition("{")[0])}
    return None if len(known) < LEAST_HELD else {name: value for name, value in known.items() if value}


async def scrape(client: Client) -> Samples:
    """A server's samples; none while it can't be asked."""
    return parse((await fetch(client, "/metrics"))[1])


async def health(client: Client) -> int:
    """Status of the gateway's /health; 0 while it can't be asked."""
    return (await fetch(client, "/health"))[0]


async def fetch(client: Client, path: str) -> tuple[int, str]:
    """Status and text of a small page; (0, "") while it can't be had."""
    try:
        with anyio.fail_after(ASK_S):
            async with client.request("GET", path) as response:
                return response.status, (await response.read()).decode("utf-8", "replace")
    except (ConnectFailed, Disconnected, BadResponse, TimeoutError):
        return 0, ""


async def until_healthy(client: Client, timeout_s: float) -> bool:
    """Whether /health says 200 within ``timeout_s``."""
    with anyio.move_on_after(timeout_s):
        while True:
            if await health(client) == 200:
                return True
            await anyio.sleep(LOOK_S)
    return False


async def until_workers(client: Client, count: int, timeout_s: float) -> bool:
    """Whether the scheduler drives ``count`` workers within ``timeout_s``."""
    with anyio.move_on_after(timeout_s):
        while True:
            if total(await scrape(client), "phloem_scheduler_workers") >= count:
                return True
            await anyio.sleep(LOOK_S)
    return False


async def until_nothing_held(client: Client, timeout_s: float) -> Samples | None:
    """What is still held after ``timeout_s``; empty as soon as nothing is. None: nobody could tell."""
    left: Samples | None = None
    with anyio.move_on_after(timeout_s):
        while left is None or left:
            left = held(await scrape(client))
            if left is None or left:
                await anyio.sleep(LOOK_S)
    return left
