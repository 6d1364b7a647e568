"""A scheduler in fifty lines: opens sequences, deals pages, plans steps, collects what they yield."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phloem_gpu_worker.core import WorkerCore
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Grammar, Plan, Result, RowFailure, SamplingParams, SlotOpen


@dataclass
class Sequence:
    """What the driver knows of a live slot."""

    ids: list[int]
    prompt: int
    committed: int = 0
    pages: int = 0
    failure: RowFailure | None = None
    ended: bool = False
    late: int = 0
    logprobs: list[Any] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.ids[self.prompt :]


class Driver:
    """Drives a core step by step. Pages are dealt in descending order and returned when a sequence closes."""

    def __init__(self, core: WorkerCore) -> None:
        self.core = core
        self.page_size = core.runner.capacity.page_size
        self.free = list(range(core.runner.capacity.pages))
        self.live: dict[int, Sequence] = {}
        self.held: dict[int, list[int]] = {}
        self.step = 0
        self.generation = 0
        self.opens: list[SlotOpen] = []
        self.closes: list[int] = []

    def open(
        self,
        slot: int,
        prompt: list[int],
        held: list[int] | None = None,
        *,
        seed: int = 1,
        child: int = 0,
        grammar: Grammar | None = None,
        **params: Any,
    ) -> Sequence:
        """Put a sequence into a slot with the next plan."""
        ids = prompt + (held or [])
        self.generation += 1
        sampling = SamplingParams(**{"max_tokens": 100, "temperature": 0.0, **params})
        self.opens.append(
            SlotOpen(slot, self.generation, child, pack_ids(ids), len(prompt), 0, b"", sampling, seed, grammar)
        )
        self.live[slot] = Sequence(ids, len(prompt))
        self.held[slot] = []
        return self.live[slot]

    def close(self, slot: int) -> None:
        """Empty a slot with the next plan."""
        self.closes.append(slot)
        self.free.extend(self.held.pop(slot))
        del self.live[slot]

    def plan(self, rows: dict[int, int]) -> Plan:
        """The next plan: slot -> known tokens to extend by, 0 = decode. Deals the pages it needs."""
        owners, pages = [], []
        for slot, count in rows.items():
            sequence = self.live[slot]
            tokens = sequence.committed + count if count else len(sequence.ids)
            while len(self.held[slot]) * self.page_size < tokens:
                owners.append(slot)
                pages.append(self.free.pop())
                self.held[slot].append(pages[-1])
        self.step += 1
        opens, closes, self.opens, self.closes = tuple(self.opens), pack_ids(self.closes), [], []
        return Plan(
            self.step, pack_ids(rows), pack_ids(rows.values()), closes, opens, pack_ids(owners), pack_ids(pages)
        )

    def run(self, rows: dict[int, int]) -> Result:
        """Plan, execute, take in."""
        result = self.core.execute(self.plan(rows))
        ids = iter(unpack_ids(result.ids))
        order = list(rows)
        for slot, count, yielded in zip(order, rows.values(), result.yields, strict=True):
            sequence = self.live[slot]
            sequence.committed = max(sequence.committed, sequence.committed + count if count else len(sequence.ids))
            if yielded:
                sequence.ids.append(next(ids))
            elif sequence.committed == len(sequence.ids):
                sequence.late += 1
        assert next(ids, None) is None
        for failure in result.failures:
            self.live[order[failure.row]].failure = failure
        for row in unpack_ids(result.grammar_ended):
            self.live[order[row]].ended = True
        for entry in result.logprobs:
            self.live[order[entry.row]].logprobs.append(entry)
        return result

    def finish(self, tokens: int, chunk: int = 512) -> None:
        """Run all live sequences together until each has ``tokens`` output tokens, failed or ended."""
        for _ in range(2000):
            rows: dict[int, int] = {}
            for slot, sequence in self.live.items():
                known = len(sequence.ids) - sequence.committed
                if sequence.failure or sequence.ended or len(sequence.output) >= tokens:
                    continue
                rows[slot] = min(chunk, known) if known > 1 or not sequence.output else 0
                if known == 0:
                    rows[slot] = 0
            if not rows:
                return
            self.run(rows)
        raise AssertionError("the sequences do not get on")
