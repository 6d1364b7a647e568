"""One run: clients, the scheduler's core and a device, on a clock that jumps from event to event."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from phloem.bench.stats import percentile
from phloem_proto.messages import Cancel, End, Open, OpenReply, SamplingParams
from phloem_scheduler.actions import Reply, SendOutput, SendPlan
from phloem_scheduler.core import Core
from phloem_scheduler.settings import Settings

from .calls import Call, Clients
from .cost import Cost
from .device import Device, profile
from .plain import forget_demand

WORKER, DETOKENISER, GATEWAY = "device", "detokeniser", "gateway"


class Refused(RuntimeError):
    """Raised when the scheduler refuses a call or ends it before it has its answer: the pool is too small for it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """KV pages of the device."""

    pages: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to."""

    calls: int
    prompt_tokens: int
    """Of all calls, as they came."""
    prefill_tokens: int
    """Prompt tokens that the device computed, those computed again after a retraction included."""
    hit_share: float
    """Share of the tokens known at a pick that were cached."""
    wait_p50_s: float
    """From a call's arrival to its first token."""
    wait_p99_s: float
    makespan_s: float
    """From the start to the last answer."""
    steps: int
    evicted_pages: int
    retractions: int


@dataclass(slots=True)
class Simulation:
    """See `run`. What happened to a single call can be read here after it."""

    settings: Settings
    pool: Pool
    cost: Cost
    clients: Clients
    demand_aware: bool = True
    """Off: eviction goes by its own order alone, whoever waits."""
    now: float = 0.0
    waits: dict[Call, float] = field(default_factory=dict)
    """Arrival to first token of each call, in seconds."""
    core: Core = field(init=False)
    device: Device = field(init=False)
    _on_end: Callable[[], None] = field(init=False)
    _live: dict[bytes, Call] = field(default_factory=dict)
    _arrived: dict[Call, float] = field(default_factory=dict)
    _opened: int = 0

    def run(self, on_end: Callable[[], None] = lambda: None) -> Figures:
        """Run until all clients have their answers; on_end is called for each. Raises Refused."""
        core = self.core = Core(self.settings)
        device = self.device = Device(self.cost, self._answer)
        self._on_end = on_end
        core.detokeniser_joined(DETOKENISER)
        core.worker_joined(WORKER, profile(self.pool.pages, self.pool.page_size))
        if not self.demand_aware:
            forget_demand(core.workers[WORKER], self.settings.eviction)
        prompt_tokens = 0
        while True:
            for call in self.clients.due(self.now, core.waiting):
                prompt_tokens += call.prompt_tokens
                self._open(call)
            if self._decide():
                continue  # who has an answer may ask again at once
            done_at, next_at = device.done_at, self.clients.next_at()
            if done_at is not None and (next_at is None or done_at <= next_at):
                self.now = done_at
                core.result(WORKER, device.finish())
            elif next_at is not None:
                self.now = max(self.now, next_at)
            else:
                break
        assert core.idle, "the run stands still although calls are live"
        return self._figures(prompt_tokens)

    def _open(self, call: Call) -> None:
        self._opened += 1
        rid = self._opened.to_bytes(16, "big")
        self._live[rid] = call
        self._arrived[call] = self.now
        params = SamplingParams(max_tokens=len(call.answer), temperature=0.0, ignore_eos=True)
        message = Open(rid, 1, GATEWAY, DETOKENISER, call.ids, params, 0, priority=call.priority)
        self.core.open(message, None, self.now)

    def _decide(self) -> bool:
        """Let the core decide, and do what it wants; whether a call ended."""
        ended = False
        for action in self.core.decide(self.now):
            match action:
                case SendPlan(plan=plan):
                    self.device.send(plan, self.now)
                case SendOutput(output=output):
                    for frame in output.frames:
                        call = self._live[frame.rid]
                        if frame.ids:
                            self.waits.setdefault(call, self.now - self._arrived[call])
                        if frame.end is not None:
                            self._ended(frame.rid, frame.end)
                            ended = True
                case Reply(message=OpenReply(error=error)) if error is not None:
                    raise Refused(error.message)
        return ended

    def _ended(self, rid: bytes, end: End) -> None:
        if end.reason != "length":
            raise Refused(end.message or end.reason)
        call = self._live.pop(rid)
        del self._arrived[call]
        self.core.cancel(Cancel(rid, 1), self.now)
        self.clients.ended(call, self.now)
        self._on_end()

    def _answer(self, rid: bytes) -> array[int]:
        call = self._live.get(rid)
        return call.answer if call is not None else _NOTHING

    def _figures(self, prompt_tokens: int) -> Figures:
        counters = self.core.counters
        waits = sorted(self.waits.values())
        return Figures(
            calls=len(waits),
            prompt_tokens=prompt_tokens,
            prefill_tokens=self.device.prompt_tokens,
            hit_share=counters.cached_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0,
            wait_p50_s=percentile(waits, 0.5) if waits else 0.0,
            wait_p99_s=percentile(waits, 0.99) if waits else 0.0,
            makespan_s=self.now,
            steps=self.device.steps,
            evicted_pages=self.core.workers[WORKER].cache.evicted_pages,
            retractions=counters.retractions,
        )


_NOTHING = array("I", [0])
"""Drawn for rows whose call has ended: a step that was under way."""
