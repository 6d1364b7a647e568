"""The scheduler's own settings, validated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phloem_bus.errors import ConfigError

from .eviction import EVICTION
from .policy import POLICIES
from .settings import Settings

DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Raises ConfigError, naming the flag, for a value that can't be used."""

    chunk_ms: float = DEFAULTS.chunk_ms
    """Milliseconds that a step with prompt tokens may take, up to twice that while many wait."""
    chunk_tokens: int = 0
    """A fixed number of prompt tokens per step instead; 0 = by chunk_ms."""
    max_running: int = DEFAULTS.max_running
    """Sequences that run on one worker."""
    max_queued: int = DEFAULTS.max_queued
    """Sequences that wait."""
    depth: int = DEFAULTS.depth
    """Plans in flight per worker."""
    policy: str = DEFAULTS.policy
    """Order of the queue."""
    ageing_s: float = DEFAULTS.ageing_s
    """With lpm: seconds by which a request may be overtaken by a later one that has more of its prompt cached."""
    eviction: str = DEFAULTS.eviction
    """Which unused cached pages go first."""
    preempt_above: int = -1 if DEFAULTS.preempt_above is None else DEFAULTS.preempt_above
    """Difference of priorities above which a waiting request takes a running one's room; -1 = never."""
    balance_ratio: float = DEFAULTS.balance_ratio
    """Rows of a worker, as a multiple of the least loaded one's, above which its cache attracts no more."""
    balance_rows: int = DEFAULTS.balance_rows
    """Rows by which it must exceed it, too."""
    pin_share: float = DEFAULTS.pin_share
    """Share of a worker's pages that pins may hold."""
    disable_radix_cache: bool = False
    """Forget the KV of finished requests."""
    reserve: float = DEFAULTS.reserve
    """Share of running sequences' remaining output set aside at first."""
    worker_wait_s: float = DEFAULTS.worker_wait_s
    """Seconds that accepted requests wait when there is no worker."""
    compile_timeout_s: float = 30.0
    """Seconds that the verdict on a grammar may take."""

    def __post_init__(self) -> None:
        between("--chunk-ms", self.chunk_ms, 0.1, 10_000)
        between("--chunk-tokens", self.chunk_tokens, 0, 1_000_000)
        between("--max-running", self.max_running, 1, 65_536)
        between("--max-queued", self.max_queued, 1, 1_000_000)
        between("--depth", self.depth, 1, 3)
        between("--reserve", self.reserve, 0, 1)
        between("--worker-wait", self.worker_wait_s, 0, 86_400)
        between("--compile-timeout", self.compile_timeout_s, 0.1, 3_600)
        between("--ageing", self.ageing_s, 0, 86_400)
        between("--preempt-above", self.preempt_above, -1, 1_000_000)
        between("--balance-ratio", self.balance_ratio, 1, 1_000)
        between("--balance-rows", self.balance_rows, 1, 1_000_000)
        between("--pin-share", self.pin_share, 0, 0.9)
        one_of("--policy", self.policy, POLICIES)
        one_of("--eviction", self.eviction, EVICTION)

    @property
    def settings(self) -> Settings:
        """What the core is told."""
        return Settings(
            chunk_ms=self.chunk_ms,
            chunk_tokens=self.chunk_tokens or None,
            max_running=self.max_running,
            max_queued=self.max_queued,
            depth=self.depth,
            policy=self.policy,
            ageing_s=self.ageing_s,
            eviction=self.eviction,
            preempt_above=None if self.preempt_above < 0 else self.preempt_above,
            balance_ratio=self.balance_ratio,
            balance_rows=self.balance_rows,
            pin_share=self.pin_share,
            reuse=not self.disable_radix_cache,
            reserve=self.reserve,
            worker_wait_s=self.worker_wait_s,
        )


def between(flag: str, value: float, least: float, most: float) -> None:
    """Raise ConfigError unless least <= value <= most."""
    if not least <= value <= most:
        raise ConfigError(flag, f"between {least:g} and {most:g}, not {value:g}")


def one_of(flag: str, value: str, names: Iterable[str]) -> None:
    """Raise ConfigError unless value is one of names."""
    known = sorted(names)
    if value not in known:
        raise ConfigError(flag, f"one of {', '.join(known)}, not {value!r}")
