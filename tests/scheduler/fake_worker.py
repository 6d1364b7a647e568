"""A worker without a model: the next token is a hash of the prefix. It checks every page it reads, so a page used wrongly is found at once."""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import dataclass, field

from phloem_proto.codec import pack_floats, pack_ids, unpack_ids
from phloem_proto.messages import End, Plan, Result, RowLogprobs, SamplingParams, SlotOpen, WorkerProfile

EOS = 0


def profile(
    pages: int = 64,
    page_size: int = 4,
    slots: int = 8,
    max_step_tokens: int = 512,
    context_length: int = 4096,
    vocab_size: int = 40,
) -> WorkerProfile:
    """A small worker."""
    return WorkerProfile(page_size, pages, slots, max_step_tokens, context_length, vocab_size, (EOS,), "float32", "cpu")


def mix(state: int, token: int) -> int:
    """Hash of a prefix and one more token."""
    return zlib.crc32(token.to_bytes(4, "little"), state)


def draw(state: int, params: SamplingParams, seed: int, child: int, position: int, vocab_size: int) -> int:
    """The token after a prefix: by the prefix alone when greedy, else keyed by (seed, child, output position) too."""
    if params.temperature > 0:
        state = zlib.crc32(f"{seed} {child} {position}".encode(), state)
    token = (state * 2654435761 >> 7) % vocab_size
    return token if position >= params.min_tokens or token != EOS else 1


def expected(
    prompt: list[int],
    params: SamplingParams,
    seed: int = 0,
    child: int = 0,
    vocab_size: int = 40,
    grammar_length: int = 0,
) -> tuple[list[int], End]:
    """What a request must yield, whatever else runs."""
    state, output = 1, array("I")
    for token in prompt:
        state = mix(state, token)
    while len(output) < params.max_tokens:
        token = draw(state, params, seed, child, len(output), vocab_size)
        output.append(token)
        state = mix(state, token)
        if token == EOS and not params.ignore_eos:
            return list(output), End("stop")
        if token in params.stop_token_ids:
            return list(output), End("stop", matched=token)
        if len(output) < params.max_tokens and len(output) == grammar_length:
            return list(output), End("stop")
    return list(output), End("length")


@dataclass
class Slot:
    """What a slot holds: tokens (known, then drawn), their page table, and how many have KV."""

    opened: SlotOpen
    tokens: array[int]
    table: array[int]
    filled: int
    states: list[int] = field(default_factory=lambda: [1])  # states[i]: hash of the first i tokens


class FakeWorker:
    """Runs plans in order, one at a time. late: share of draws that are not ready in time."""

    def __init__(self, shape: WorkerProfile, seed: int = 0, late: float = 0.0, forward_ms: float = 0.0) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        self.late = late
        self.forward_ms = forward_ms
        self.reset()

    def reset(self) -> None:
        """A new session: everything is empty."""
        self.slots: dict[int, Slot] = {}
        self.generations: dict[int, int] = {}
        self.pages: dict[tuple[int, int], int] = {}  # (page, offset) -> hash of the prefix that ends there
        self.step = 0
        self.computed = 0  # tokens whose KV was computed, decode rows included

    def run(self, plan: Plan) -> Result:
        """One step."""
        assert plan.step == self.step + 1
        self.step = plan.step
        for slot in unpack_ids(plan.closes):
            del self.slots[slot]
        for opened in plan.opens:
            self._open(opened)
        for slot, page in zip(unpack_ids(plan.page_slots), unpack_ids(plan.page_ids), strict=True):
            self.slots[slot].table.append(page)
        rows = unpack_ids(plan.rows)
        assert len(set(rows)) == len(rows)
        assert sum(unpack_ids(plan.counts)) + list(unpack_ids(plan.counts)).count(0) <= self.shape.max_step_tokens
        # A worker writes the KV of all rows before any of them attends: what a row reads may be of this same step.
        counts = unpack_ids(plan.counts)
        writes: dict[tuple[int, int], int] = {}
        starts = [self._write(slot, count, writes) for slot, count in zip(rows, counts, strict=True)]
        self.pages.update(writes)
        for slot, start in zip(rows, starts, strict=True):
            self._read(slot, start)
        draws = [
            count == 0 or self.slots[slot].filled == len(self.slots[slot].opened.ids) // 4
            for slot, count in zip(rows, counts, strict=True)
        ]
        return self._sample(rows, draws, plan)

    def _open(self, opened: SlotOpen) -> None:
        assert 0 <= opened.slot < self.shape.slots
        assert opened.slot not in self.slots
        assert opened.generation > self.generations.get(opened.slot, 0)
        assert opened.committed < len(opened.ids) // 4
        self.generations[opened.slot] = opened.generation
        slot = Slot(opened, unpack_ids(opened.ids), unpack_ids(opened.pages), opened.committed)
        for token in slot.tokens:
            slot.states.append(mix(slot.states[-1], token))
        self.slots[opened.slot] = slot

    def _write(self, number: int, count: int, writes: dict[tuple[int, int], int]) -> int:
        """Compute KV of the row's tokens; returns the position of the first."""
        slot, size = self.slots[number], self.shape.page_size
        if count == 0:
            assert slot.filled >= len(slot.tokens) - 1, "a decode row, but known tokens have no KV yet"
            start, end = len(slot.tokens) - 1, len(slot.tokens)
        else:
            start, end = slot.filled, slot.filled + count
            assert end <= len(slot.opened.ids) // 4
        assert end <= len(slot.table) * size, "the plan has too few pages"
        for at in range(start, end):
            place = slot.table[at // size], at % size
            assert place not in writes, "two rows write to one page"
            assert 0 <= place[0] < self.shape.pages
            writes[place] = slot.states[at + 1]
        slot.filled = max(slot.filled, end)
        self.computed += end - start
        return start

    def _read(self, number: int, start: int) -> None:
        """Attend to what is before the row's tokens."""
        slot, size = self.slots[number], self.shape.page_size
        for at in range(start):
            assert self.pages.get((slot.table[at // size], at % size)) == slot.states[at + 1], (
                "a page holds something else"
            )

    def _sample(self, rows: array[int], draws: list[bool], plan: Plan) -> Result:
        yields, ids, ended, logprobs = bytearray(), array("I"), [], []
        for index, number in enumerate(rows):
            slot = self.slots[number]
            logprobs.extend(self._prompt_logprobs(index, slot, unpack_ids(plan.counts)[index]))
            over = draws[index] and self._grammar_over(slot)
            if not draws[index] or over or self.rng.random() < self.late:
                yields.append(0)
            else:
                token = self._draw(slot)
                yields.append(1)
                ids.append(token)
                if slot.opened.params.logprobs >= 0:
                    logprobs.append(row_logprobs(index, False, len(slot.tokens) - 1, [token]))
            if draws[index] and self._grammar_over(slot):
                ended.append(index)
        return Result(
            plan.step,
            bytes(yields),
            pack_ids(ids),
            grammar_ended=pack_ids(ended),
            logprobs=tuple(logprobs),
            forward_ms=self.forward_ms * (len(rows) + sum(unpack_ids(plan.counts))),
        )

    def _draw(self, slot: Slot) -> int:
        position = len(slot.tokens) - slot.opened.prompt_tokens
        token = draw(
            slot.states[-1], slot.opened.params, slot.opened.seed, slot.opened.child, position, self.shape.vocab_size
        )
        slot.tokens.append(token)
        slot.states.append(mix(slot.states[-1], token))
        return token

    def _grammar_over(self, slot: Slot) -> bool:
        """A fake grammar's source is the number of tokens after which it has ended."""
        grammar = slot.opened.grammar
        return grammar is not None and len(slot.tokens) - slot.opened.prompt_tokens >= int(grammar.source)

    def _prompt_logprobs(self, index: int, slot: Slot, count: int) -> list[RowLogprobs]:
        """Of the prompt tokens that this row's tokens predict: each by the one before it, so the first by none."""
        params = slot.opened.params
        if params.prompt_logprobs < 0 or count == 0:
            return []
        start = max(slot.filled - count + 1, params.logprob_start, 1)
        stop = min(slot.filled + 1, slot.opened.prompt_tokens)
        return [row_logprobs(index, True, start, list(slot.tokens[start:stop]))] if start < stop else []


def row_logprobs(index: int, prompt: bool, start: int, ids: list[int]) -> RowLogprobs:
    """Logprobs that tell a token's position: -(position + 1)."""
    return RowLogprobs(
        index, prompt, start, pack_ids(ids), pack_floats([-(start + at + 1.0) for at in range(len(ids))])
    )
