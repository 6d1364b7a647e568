"""What `phloem bench serve` was asked to do: options checked once, and the workload of each round made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from . import traces
from .load import MAX_IN_FLIGHT
from .words import Fit
from .workload import Item, Lengths, SharedPrefix, json_answers, poisson, shared_prefix, single, unique


class Workload(StrEnum):
    """What is sent."""

    UNIQUE = "unique"
    SINGLE = "single"
    SHARED_PREFIX = "shared-prefix"
    JSON = "json"
    TRACE = "trace"


class BadOption(ValueError):
    """Raised when an option's value is out of range, or options don't go together; names the option."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a run. Lengths in tokens."""

    workload: Workload = Workload.UNIQUE
    num_prompts: int = 64
    input_len: int = 64
    output_len: int = 128
    range_ratio: float = 1.0
    groups: int = 4
    prompts_per_group: int = 16
    prefix_len: int = 1024
    question_len: int = 64
    ordered: bool = False
    trace: Path | None = None
    scale: float = 1.0
    speedup: float = 1.0
    max_input_len: int = 1536
    max_output_len: int = 512
    request_rate: float | None = None
    """Requests per second of an open loop; None = closed loop, or the trace's own times."""
    concurrency: int | None = None
    """Most requests in flight; None = 16 in a closed loop, `MAX_IN_FLIGHT` in an open one."""
    rounds: int = 1
    warmup: int = 2
    flush_cache: bool = False
    same_prompts: bool = False
    """Send the prompts of the first round again in each round; otherwise each round draws its own."""
    seed: int = 0
    chat: bool = True
    stream: bool = True
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout_s: float = 600.0
    model: str | None = None
    fit: bool = True
    """Fit prompt lengths to the server's own counts."""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least_one = ("num_prompts", "input_len", "output_len", "groups", "prompts_per_group", "prefix_len", "question_len",
                     "max_input_len", "max_output_len", "rounds")  # fmt: skip
        for name in least_one:
            _need(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("scale", "speedup", "timeout_s"):
            _need(getattr(self, name) > 0, name, "must be positive")
        _need(0 < self.range_ratio <= 1, "range_ratio", "must be above 0 and at most 1")
        _need(self.request_rate is None or self.request_rate > 0, "request_rate", "must be positive")
        _need(
            self.concurrency is None or 1 <= self.concurrency <= MAX_IN_FLIGHT,
            "concurrency",
            f"must be 1 to {MAX_IN_FLIGHT}",
        )
        _need(self.warmup >= 0, "warmup", "must be at least 0")
        _need(self.temperature >= 0, "temperature", "must be at least 0")
        _need(
            (self.workload == Workload.TRACE) == (self.trace is not None),
            "trace",
            "goes with --workload trace, and only with it",
        )

    @property
    def in_flight(self) -> int:
        """Most requests in flight."""
        open_loop = self.request_rate is not None or self.workload == Workload.TRACE
        return self.concurrency or (MAX_IN_FLIGHT if open_loop else 16)

    @property
    def requests(self) -> int:
        """Requests of one round (of a trace: at most)."""
        return self.groups * self.prompts_per_group if self.workload == Workload.SHARED_PREFIX else self.num_prompts

    def items(self, round_index: int, fit: Fit) -> list[Item]:
        """The workload of a round.

        Raises:
            traces.TraceError, OSError: the trace can't be read.
        """
        seed = self.seed if self.same_prompts else self.seed + round_index
        items = self._untimed(fit, seed)
        return items if self.request_rate is None else poisson(items, self.request_rate, seed)

    def warmup_items(self, fit: Fit) -> list[Item]:
        """Requests of the same shape whose prompts occur in no round."""
        if not self.warmup:
            return []
        items = self._untimed(fit, -1 - self.seed)
        return [
            Item(one.user, one.output_tokens, one.system, None, one.schema, one.group)
            for one in islice(items, self.warmup)
        ]

    def _untimed(self, fit: Fit, seed: int) -> list[Item]:
        lengths = Lengths(self.input_len, self.output_len, self.range_ratio)
        match self.workload:
            case Workload.UNIQUE:
                return unique(self.num_prompts, lengths, fit, seed)
            case Workload.SINGLE:
                return single(self.num_prompts, lengths, fit, seed)
            case Workload.JSON:
                return json_answers(self.num_prompts, self.output_len, seed)
            case Workload.SHARED_PREFIX:
                return shared_prefix(self._groups(), fit, seed)
            case Workload.TRACE:
                return self._from_trace(fit, seed)

    def _groups(self) -> SharedPrefix:
        return SharedPrefix(
            self.groups,
            self.prompts_per_group,
            self.prefix_len,
            self.question_len,
            self.output_len,
            self.range_ratio,
            self.ordered,
        )

    def _from_trace(self, fit: Fit, seed: int) -> list[Item]:
        assert self.trace is not None  # checked in __post_init__
        return traces.workload(
            traces.read(self.trace, self.num_prompts),
            fit,
            seed,
            scale=self.scale,
            speedup=self.speedup,
            max_input=self.max_input_len,
            max_output=self.max_output_len,
        )


def turns(rounds: int, servers: Sequence[str]) -> list[tuple[int, str]]:
    """(round, server) in the order they are run: A B, B A, A B ... so that a machine that warms up or slows down favours neither."""
    return [
        (index, server)
        for index in range(rounds)
        for server in (servers if index % 2 == 0 else tuple(reversed(servers)))
    ]


def _need(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise BadOption(f"--{name.removesuffix('_s').replace('_', '-')} {what}")
