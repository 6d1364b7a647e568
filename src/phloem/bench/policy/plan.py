"""What is to be simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES

from .ageing import Hits
from .conversations import Fork, Talk
from .cost import Cost

WORKLOADS = ("conversations", "recorded", "agents", "ageing", "trace", "eviction")
TRACED = ("trace", "eviction")
"""Workloads that need a trace file."""


class BadPlan(ValueError):
    """Raised when options contradict each other or a workload; the message names the option."""


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """All options. Raises BadPlan, or ValueError from its parts."""

    workloads: tuple[str, ...] = ("conversations", "recorded", "agents", "ageing")
    policies: tuple[str, ...] = tuple(POLICIES)
    evictions: tuple[str, ...] = ("lru",)
    cost: Cost = field(default_factory=Cost)
    chunk_ms: float = 50.0
    max_running: int = 256
    page_size: int = 16
    ageing_s: float = 30.0
    talk: Talk = field(default_factory=Talk)
    room: float = 1.5
    """conversations, recorded: the pool, in whole conversations."""
    fork: Fork = field(default_factory=Fork)
    agents_pool: float = 0.5
    """agents: the pool, as a share of the distinct pages of all prompts."""
    hits: Hits = field(default_factory=Hits)
    ageing_sweep: tuple[float, ...] = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0)
    trace: Path | None = None
    requests: int = 6000
    """trace, eviction: the first so many of the file."""
    pools: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    """trace, eviction: pools, as shares of the distinct pages of all prompts."""
    visible: tuple[int, ...] = (16, 64, 256, 1024)
    """eviction: how many requests wait at any time."""
    speedup: float = 1.0
    """trace: arrival times are divided by this."""
    seed: int = 0

    def __post_init__(self) -> None:
        for option, names, known in (
            ("--workload", self.workloads, WORKLOADS),
            ("--policy", self.policies, POLICIES),
            ("--eviction", self.evictions, EVICTION),
        ):
            for name in names:
                if name not in known:
                    raise BadPlan(f"{option} must be one of {', '.join(known)}, not {name}")
        if self.trace is None and any(one in TRACED for one in self.workloads):
            raise BadPlan(
                "--trace is needed for the workloads trace and eviction (or a file of that name in $PHLOEM_DATA)"
            )
        if self.room < 1:
            raise BadPlan("--room must be at least 1: a conversation has to fit")
        if not all(share > 0 for share in (*self.pools, self.agents_pool)):
            raise BadPlan("pools must be larger than 0 %")
        if not all(one >= 1 for one in (self.requests, self.max_running, self.page_size, *self.visible)):
            raise BadPlan("--requests, --max-running, --page-size and --visible must be at least 1")
        if not (self.speedup > 0 and self.chunk_ms > 0):
            raise BadPlan("--speedup and --chunk-ms must be larger than 0")
        if not all(0 <= one < float("inf") for one in (self.ageing_s, *self.ageing_sweep)):
            raise BadPlan("ageing must not be negative")

    def quick(self) -> PolicyPlan:
        """The same workloads in sizes that take a second or two."""
        return replace(
            self,
            talk=replace(self.talk, conversations=3, turns=6, first_tokens=128, user_tokens=32, answer_tokens=16),
            fork=Fork(trunk_tokens=256, forks=3, turns=4, task_tokens=32, tool_tokens=64, answer_tokens=8, tool_s=0.1),
            hits=Hits(prefix_tokens=512, miss_tokens=256, waiting=4, running=2, miss_at_s=0.5),
            ageing_sweep=(0.0, 2.0),
            requests=min(self.requests, 200),
            visible=(16, 64),
            pools=(0.25, 0.5),
        )
