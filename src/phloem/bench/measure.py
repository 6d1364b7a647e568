"""Carry out a `Plan`: find out about the servers, warm them up, run the rounds in turn, sum up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from .answers import validate
from .http1 import Client
from .load import Run
from .openai_api import Api
from .plan import Plan, turns
from .record import Record
from .server import flush_cache, model_name, probe
from .stats import Ratio, Summary, compare, medians, summarize
from .words import Fit
from .workload import Item


@dataclass(frozen=True, slots=True)
class Server:
    """A server to be measured."""

    label: str
    """``A`` or ``B``."""
    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One round on one server."""

    round: int
    label: str
    flushed: bool
    summary: Summary
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured."""

    models: dict[str, str]
    """Model by label."""
    fit: Fit
    turns: list[Turn]

    def of(self, label: str) -> list[Summary]:
        """Summaries of one server, by round."""
        return [turn.summary for turn in sorted(self.turns, key=lambda turn: turn.round) if turn.label == label]

    def medians(self) -> dict[str, dict[str, float]]:
        """Per server and metric the median over rounds."""
        return {label: medians(self.of(label)) for label in self.models}

    def comparison(self) -> dict[str, Ratio]:
        """B / A; empty with one server."""
        return compare(self.pairs())

    def pairs(self) -> list[tuple[Summary, Summary]]:
        """A and B of each round; empty with one server."""
        return list(zip(self.of("A"), self.of("B"), strict=True)) if len(self.models) == 2 else []


@dataclass(slots=True)
class Watcher:
    """What is told while it runs; the default tells nobody."""

    on_turn: Callable[[int, str, int], None] = lambda round_index, label, requests: None
    on_done: Callable[[Record], None] = lambda record: None
    on_note: Callable[[str], None] = lambda text: None


async def measure(plan: Plan, servers: Sequence[Server], watcher: Watcher | None = None) -> Outcome:
    """Measure one server, or two in turn.

    Raises:
        ServerUnusable: a server can't be measured at all.
        traces.TraceError, OSError: the trace can't be read.
        ValueError: a URL is none.
    """
    watcher = watcher or Watcher()
    clients = {server.label: Client(server.url, server.headers) for server in servers}
    try:
        apis = {label: _api(plan, await _model(plan, client)) for label, client in clients.items()}
        fit = await _fit(plan, clients["A"], apis["A"], watcher)
        for label, client in clients.items():
            await _warm_up(plan, client, apis[label], fit, label, watcher)
        done = []
        for round_index, label in turns(plan.rounds, list(clients)):
            done.append(await _turn(plan, clients[label], apis[label], fit, round_index, label, watcher))
        return Outcome({label: api.model for label, api in apis.items()}, fit, done)
    finally:
        with anyio.CancelScope(shield=True):
            for client in clients.values():
                await client.aclose()


async def _model(plan: Plan, client: Client) -> str:
    return plan.model or await model_name(client)


def _api(plan: Plan, model: str) -> Api:
    return Api(
        model,
        chat=plan.chat,
        stream=plan.stream,
        temperature=plan.temperature,
        ignore_eos=plan.ignore_eos,
        timeout_s=plan.timeout_s,
        extra=plan.extra,
    )


async def _fit(plan: Plan, client: Client, api: Api, watcher: Watcher) -> Fit:
    if not plan.fit:
        return Fit()
    found = await probe(client, api, plan.seed)
    if found is None:
        watcher.on_note("the server reports no usage: prompt lengths are estimates (one word = one token)")
    return found or Fit()


async def _warm_up(plan: Plan, client: Client, api: Api, fit: Fit, label: str, watcher: Watcher) -> None:
    items = plan.warmup_items(fit)
    if items:
        run = Run(client, api, items, concurrency=plan.in_flight)
        await run.run()
        for failed in [one for one in run.records if not one.ok][:1]:
            watcher.on_note(f"{label}: a warm-up request failed: {failed.failure}: {failed.detail}")


async def _turn(plan: Plan, client: Client, api: Api, fit: Fit, round_index: int, label: str, watcher: Watcher) -> Turn:
    items: list[Item] = plan.items(round_index, fit)
    flushed = plan.flush_cache and await flush_cache(client)
    if plan.flush_cache and not flushed:
        watcher.on_note(f"{label}: the cache could not be flushed")
    watcher.on_turn(round_index, label, len(items))
    run = Run(client, api, items, concurrency=plan.in_flight, on_done=watcher.on_done)
    generator = await run.run()
    validate(items, run.records)
    return Turn(round_index, label, flushed, summarize(run.records, generator), run.records)
