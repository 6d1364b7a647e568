"""What a run is made of, drawn from its seed: the machine, the clients' calls, and what goes wrong when."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

WARM_UP_S = 1.5
"""Until everybody has found everybody and a scheduler leads."""
FAULTS_S = 4.5
"""How long faults begin."""
LONGEST_S = 3.0
"""Most that a fault lasts."""
MOST_TOKENS = 352
"""Of the longest call, output included: a worker that could not hold it would refuse it."""
ROLES = ("gateway", "tokenizer", "scheduler", "worker", "grammar")

SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 5},
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}},
        "required": ["ok", "tags"],
        "additionalProperties": False,
    },
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One client and what it asks for. Times in simulated seconds."""

    number: int
    at: float
    body: dict[str, Any]
    leaves_after_s: float | None = None
    """Closes its connection after so long; None = stays."""
    reads_slowly_s: float = 0.0
    """Does not read for so long after its first event."""

    @property
    def schema(self) -> dict[str, Any] | None:
        """What the answer must conform to."""
        text = self.body["sampling_params"].get("json_schema")
        return None if text is None else dict(json.loads(text))


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong. ``kind`` names a method of `Nemesis`."""

    number: int
    at: float
    kind: str
    who: str = ""
    other: str = ""
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        parts = [self.kind, self.who, self.other, f"{self.seconds:.2f} s" if self.seconds else ""]
        return " ".join(part for part in [*parts, f"{self.amount:.3g}" if self.amount else ""] if part)


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes and settings of the simulated deployment."""

    gateways: int = 2
    tokenizers: int = 2
    schedulers: int = 2
    workers: int = 2
    grammars: int = 1
    page_size: int = 8
    pages: int = 120
    rows: int = 8
    step_s: tuple[float, float] = (0.01, 0.04)
    asynchronous: bool = False
    new_names: bool = False
    """A process that is started again has another name (as containers have)."""
    policy: str = "lpm"
    depth: int = 2
    max_queued: int = 1024
    chunk_tokens: int = 0
    """Prompt tokens per step; 0 = by time."""
    reserve: float = 0.7

    def count(self, role: str) -> int:
        """Processes of ``role``."""
        return int(getattr(self, role + "s"))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run. Equal scenarios give equal traces."""

    seed: int
    machine: Machine
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...] = field(default=())

    def calm(self) -> Scenario:
        """The same calls, all at once, on a machine where nothing is scarce and nothing goes wrong, from clients that stay."""
        machine = replace(
            self.machine, gateways=1, tokenizers=1, schedulers=1, workers=1, grammars=1, rows=32, step_s=(0.002, 0.002),
            pages=len(self.calls) * 2 * MOST_TOKENS // self.machine.page_size, max_queued=1024, chunk_tokens=0,
        )  # fmt: skip
        calls = tuple(replace(call, at=WARM_UP_S, leaves_after_s=None, reads_slowly_s=0.0) for call in self.calls)
        return replace(self, machine=machine, calls=calls, faults=())

    def without(self, *, faults: Collection[int] = (), calls: Collection[int] = ()) -> Scenario:
        """The same without the faults and calls of these numbers."""
        return replace(
            self,
            faults=tuple(fault for fault in self.faults if fault.number not in faults),
            calls=tuple(call for call in self.calls if call.number not in calls),
        )


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    machine = _machine(rng)
    shared = _prompt(rng, 60) if rng.random() < 0.3 else ""
    calls = tuple(_call(rng, number, shared) for number in range(rng.randint(3, 8)))
    drawn = sorted(rng.uniform(WARM_UP_S, WARM_UP_S + FAULTS_S) for _ in range(rng.randint(1, 6)))
    faults = tuple(_fault(rng, machine, number, at) for number, at in enumerate(drawn))
    return Scenario(seed, machine, calls, faults)


def _machine(rng: random.Random) -> Machine:
    page_size = rng.choice((4, 8, 16))
    return Machine(
        gateways=rng.choice((1, 2)),
        tokenizers=rng.choice((1, 2, 2)),
        schedulers=rng.choice((1, 2, 2)),
        workers=rng.choice((1, 2, 2)),
        grammars=rng.choice((1, 1, 2)),
        page_size=page_size,
        pages=rng.choice((MOST_TOKENS, MOST_TOKENS, 5 * MOST_TOKENS)) // page_size,
        rows=rng.choice((3, 8)),
        asynchronous=rng.random() < 0.5,
        new_names=rng.random() < 0.3,
        policy=rng.choice(("lpm", "lpm", "lpm", "fcfs", "dfs-weight", "priority")),
        depth=rng.choice((1, 2, 2, 3)),
        max_queued=rng.choice((1024, 1024, 4)),
        chunk_tokens=rng.choice((0, 0, 16, 32)),
        reserve=rng.choice((0.0, 0.7)),
    )


_TEXTS = ("You are a careful assistant. ", "Translate this: ", "Once upon a time ")


def _prompt(rng: random.Random, most: int) -> str:
    return rng.choice(_TEXTS) + " ".join(str(rng.randrange(10)) for _ in range(rng.randint(1, most)))


def _call(rng: random.Random, number: int, shared: str) -> Call:
    text = shared + _prompt(rng, rng.choice((12, 12, 60)))
    params: dict[str, Any] = {"max_new_tokens": rng.randint(2, 40), "temperature": rng.choice((0.0, 0.0, 0.7, 1.0))}
    if rng.random() < 0.4:
        params |= {"json_schema": json.dumps(rng.choice(SCHEMAS)), "max_new_tokens": 50}
    elif rng.random() < 0.2:
        params["stop"] = [chr(rng.randrange(97, 123))]
    if rng.random() < 0.1:
        params["frequency_penalty"] = 0.5
    if rng.random() < 0.15:
        params["n"] = 2
    params["sampling_seed"] = rng.randrange(2**31)
    body: dict[str, Any] = {"text": text, "sampling_params": params, "stream": rng.random() < 0.7}
    if rng.random() < 0.15:
        body |= {"return_logprob": True, "top_logprobs_num": 2}
    if rng.random() < 0.2:
        body["cache_salt"] = f"tenant{rng.randrange(2)}"
    if rng.random() < 0.2:
        body["priority"] = rng.randrange(30)
    leaves = rng.uniform(0.005, 1.0) if rng.random() < 0.15 else None
    slowly = rng.uniform(0.5, 3.0) if rng.random() < 0.1 else 0.0
    return Call(number, rng.uniform(WARM_UP_S, WARM_UP_S + FAULTS_S - 1), body, leaves, slowly)


_KINDS = {
    "kill": 8,
    "drain": 4,
    "partition": 3,
    "cut": 3,
    "deafen": 3,
    "lossy": 3,
    "doubling": 2,
    "slow": 2,
    "broker": 2,
    "stall": 2,
    "hang": 2,
    "forge": 2,
}
"""How often each kind of fault is drawn."""


def _fault(rng: random.Random, machine: Machine, number: int, at: float) -> Fault:
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    who, other = rng.sample([f"{role}-{index}" for role in ROLES for index in range(machine.count(role))], 2)
    seconds = rng.uniform(0.05, LONGEST_S)
    match kind:
        case "kill" | "drain" | "deafen":
            return Fault(number, at, kind, who, seconds=seconds)
        case "partition" | "cut":
            return Fault(number, at, kind, who, other, seconds)
        case "lossy" | "doubling":
            return Fault(number, at, kind, seconds=seconds, amount=rng.uniform(0.01, 0.3))
        case "slow":
            return Fault(number, at, kind, seconds=seconds, amount=rng.uniform(0.05, 0.5))
        case "broker":
            return Fault(number, at, kind, seconds=seconds)
        case "stall":
            return Fault(number, at, kind, f"worker-{rng.randrange(machine.workers)}", seconds=seconds)
        case "hang":
            return Fault(number, at, kind, f"grammar-{rng.randrange(machine.grammars)}", seconds=seconds)
        case _:
            return Fault(number, at, "forge", who, other, amount=rng.randint(20, 200))
