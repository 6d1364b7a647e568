"""A plan cut into simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from phloem.bench.traces import read
from phloem_scheduler.settings import Settings

from .ageing import Stream
from .calls import Call, Clients, Timed, Window
from .conversations import Forking, Talking
from .cost import Cost
from .optimum import working_set
from .plan import TRACED, BadPlan, PolicyPlan
from .simulate import Figures, Pool, Simulation
from .trace import calls_of

MOST_QUEUED = 1 << 20
"""The queue is never what refuses a call here."""
ONE_ROW = 1
"""eviction: calls run one by one, as they do under the optimum, so that what other rows lock is no matter."""
WHOLE_PROMPTS = 16_384
"""eviction: prompt tokens per plan; smaller chunks would only take longer to simulate."""


@dataclass(frozen=True, slots=True)
class Row:
    """One simulation and what came of it."""

    workload: str
    policy: str
    eviction: str
    demand_aware: bool
    """Whether eviction knew who waits."""
    pool_pages: int
    pool_share: float
    """Of the distinct pages of all prompts; conversations and recorded: of the pages of one whole conversation."""
    visible: int
    """Requests that always waited; 0 = they came at times of their own."""
    ageing_s: float
    figures: Figures
    miss_wait_s: float | None = None
    """ageing: arrival to first token of the one that had nothing cached."""


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation to be run."""

    workload: str
    settings: Settings
    pool: Pool
    share: float
    cost: Cost
    clients: Callable[[], Clients]
    total: int
    """Calls, for the progress bar."""
    demand_aware: bool = True
    visible: int = 0

    @property
    def label(self) -> str:
        """What a person reads while it runs."""
        settings = self.settings
        if self.workload == "ageing":
            return f"ageing {settings.ageing_s:g} s"
        seen = f", {self.visible} visible" if self.visible and self.demand_aware else ""
        plain = "" if self.demand_aware else "plain "
        return f"{self.workload}, {self.pool.pages} pages, {settings.policy}, {plain}{settings.eviction}{seen}"

    def run(self, on_end: Callable[[], None] = lambda: None) -> Row:
        """Run it; on_end is called for each call that has its answer. Raises Refused."""
        clients = self.clients()
        simulation = Simulation(self.settings, self.pool, self.cost, clients, self.demand_aware)
        figures = simulation.run(on_end)
        return Row(
            workload=self.workload,
            policy=self.settings.policy,
            eviction=self.settings.eviction,
            demand_aware=self.demand_aware,
            pool_pages=self.pool.pages,
            pool_share=self.share,
            visible=self.visible,
            ageing_s=self.settings.ageing_s,
            figures=figures,
            miss_wait_s=simulation.waits[clients.miss] if isinstance(clients, Stream) else None,
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace as calls; empty if no workload needs it."""

    calls: list[Call]
    times: list[float]
    pools: list[tuple[Pool, float]]
    """Each with its share of the distinct pages of all prompts."""


def traced(plan: PolicyPlan) -> Traced:
    """Read what plan needs of its trace.

    Raises:
        TraceError, OSError: it can't be read.
        BadPlan: a pool is too small for a single call.
    """
    if plan.trace is None or not any(workload in TRACED for workload in plan.workloads):
        return Traced([], [], [])
    arrivals = read(plan.trace, plan.requests)
    calls = calls_of(arrivals)
    pages = working_set(calls, plan.page_size)
    pools = [(_pool(plan, pages, share, calls), share) for share in plan.pools]
    return Traced(calls, [arrival.at_s / plan.speedup for arrival in arrivals], pools)


def jobs(plan: PolicyPlan, trace: Traced) -> list[Job]:
    """Everything that plan asks for. Raises BadPlan if a pool is too small for a single call."""
    found: list[Job] = []
    for workload in plan.workloads:
        match workload:
            case "conversations" | "recorded":
                found.extend(_conversations(plan, workload))
            case "agents":
                found.extend(_agents(plan))
            case "ageing":
                found.extend(_ageing(plan))
            case "trace":
                found.extend(_trace(plan, trace))
            case "eviction":
                found.extend(_eviction(plan, trace))
    return found


def _conversations(plan: PolicyPlan, workload: str) -> list[Job]:
    talk = replace(plan.talk, recorded=workload == "recorded")
    pool = Pool(int(plan.room * -(-talk.tokens // plan.page_size)), plan.page_size)
    total = talk.conversations * talk.turns
    return _orders(plan, workload, pool, plan.room, partial(Talking, talk, plan.seed), total)


def _agents(plan: PolicyPlan) -> list[Job]:
    calls = Forking(plan.fork, plan.seed).calls
    pool = _pool(plan, working_set(calls, plan.page_size), plan.agents_pool, calls)
    return _orders(plan, "agents", pool, plan.agents_pool, partial(Forking, plan.fork, plan.seed), len(calls))


def _trace(plan: PolicyPlan, trace: Traced) -> Iterator[Job]:
    for pool, share in trace.pools:
        clients = partial(Timed, trace.times, trace.calls)
        yield from _orders(plan, "trace", pool, share, clients, len(trace.calls))


def _orders(
    plan: PolicyPlan, workload: str, pool: Pool, share: float, clients: Callable[[], Clients], total: int
) -> list[Job]:
    """Each policy under each eviction."""
    return [
        Job(workload, _settings(plan, policy, eviction), pool, share, plan.cost, clients, total)
        for eviction in plan.evictions
        for policy in plan.policies
    ]


def _ageing(plan: PolicyPlan) -> Iterator[Job]:
    pool = Pool(-(-plan.hits.tokens // plan.page_size), plan.page_size)
    for ageing_s in plan.ageing_sweep:
        settings = replace(_settings(plan, "lpm", "lru"), ageing_s=ageing_s, max_running=plan.hits.running)
        clients = partial(Stream, plan.hits, plan.seed)
        yield Job("ageing", settings, pool, 1.0, plan.cost, clients, 1, visible=plan.hits.waiting)


def _eviction(plan: PolicyPlan, trace: Traced) -> Iterator[Job]:
    """First come, first served, one by one: evictions that don't know who waits, then those that see so many."""
    for pool, share in trace.pools:
        # Plain LRU is what all others are measured by.
        kinds = [(eviction, False, max(plan.visible)) for eviction in dict.fromkeys(("lru", *plan.evictions))]
        kinds += [(eviction, True, visible) for eviction in plan.evictions for visible in plan.visible]
        for eviction, aware, visible in kinds:
            settings = replace(_settings(plan, "fcfs", eviction), max_running=ONE_ROW, chunk_tokens=WHOLE_PROMPTS)
            clients = partial(Window, trace.calls, visible)
            yield Job("eviction", settings, pool, share, plan.cost, clients, len(trace.calls), aware, visible)


def _settings(plan: PolicyPlan, policy: str, eviction: str) -> Settings:
    return Settings(
        policy=policy,
        eviction=eviction,
        ageing_s=plan.ageing_s,
        chunk_ms=plan.chunk_ms,
        max_running=plan.max_running,
        max_queued=MOST_QUEUED,
    )


def _pool(plan: PolicyPlan, working: int, share: float, calls: Sequence[Call]) -> Pool:
    """share of so many pages. Raises BadPlan if a single call does not fit."""
    pages, longest = int(working * share), -(-max(call.tokens for call in calls) // plan.page_size)
    if pages < longest:
        raise BadPlan(
            f"a pool of {share:.3g} of the working set has {pages} pages; the longest request needs {longest}"
        )
    return Pool(pages, plan.page_size)
