"""What the core is told at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it has a default; `config.py` validates what comes from flags and variables."""

    chunk_ms: float = 50.0
    """How long a step may take when prompts are computed in it, so how long a running stream waits for others' prompts. They get half of it, and
    half of what the step takes without them, in any case."""
    chunk_tokens: int | None = None
    """A fixed number of prompt tokens per step instead."""
    max_running: int = 256
    """Rows per worker, if the worker has that many slots."""
    max_queued: int = 1024
    """Choices that wait; beyond it opens are refused."""
    depth: int = 2
    """Plans in flight per worker, 1 to 3."""
    policy: str = "lpm"
    """Order of the queue, see `policy.POLICIES`."""
    ageing_s: float = 30.0
    """lpm: nobody is overtaken by a request that arrived more than this many seconds later."""
    eviction: str = "lru"
    """Which unused cached pages go first, see `eviction.EVICTION`."""
    preempt_above: int | None = 10
    """A waiting choice takes the room of running ones whose priority is lower by more than this; None = never."""
    balance_ratio: float = 1.5
    balance_rows: int = 16
    """A worker with more rows than `balance_ratio` times the least loaded one's, and at least `balance_rows` more, takes newcomers last."""
    pin_share: float = 0.5
    """Of a worker's pages, at most so much may be held by leases on prefixes."""
    reuse: bool = True
    """Keep KV in the radix tree after its request."""
    reserve: float = 0.7
    """Share of running rows' remaining output that is set aside, at first, before a newcomer is let in: 0 overcommits, 1 never does."""
    worker_wait_s: float = 60.0
    """How long requests wait for a worker to come back before they end with an error."""
    credit_bytes: int = 64 << 20
    """Bytes of prompt ids that may wait, all gateways together."""
