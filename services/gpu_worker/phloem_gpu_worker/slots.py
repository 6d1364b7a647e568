"""Slots: what the worker holds of each live sequence, as arrays over slots so that a step costs no Python per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phloem_proto.messages import SamplingParams, SlotOpen

from .batch import Floats, Ints
from .errors import BadPlan
from .penalties import TokenCounts


@dataclass(slots=True)
class Special:
    """What only some sequences need: anything beyond temperature, top-k, top-p and min-p."""

    params: SamplingParams
    counts: TokenCounts | None
    """Present if any penalty is asked for."""
    bias_ids: Ints
    bias_values: Floats
    ending_ids: Ints
    """Tokens that can't be drawn before ``min_tokens``."""
    constrained: bool
    """A grammar masks the draws."""


class Slots:
    """State of all slots. Memory for tokens and page tables is reserved but only touched pages of it are real.

    Args:
        slots: how many sequences can be live.
        context: most tokens of a sequence; one more fits, which is drawn at the last position.
        page_size, scratch_page: of the KV pool; the scratch page pads page tables.
        vocab_size: ids run below it.
    """

    def __init__(
        self, slots: int, context: int, page_size: int, scratch_page: int, vocab_size: int, eos_ids: tuple[int, ...]
    ) -> None:
        self._vocab_size = vocab_size
        self.page_size = page_size
        self._scratch_page = scratch_page
        self._eos_ids = eos_ids
        self.tokens: NDArray[np.int32] = np.zeros((slots, context + 1), dtype=np.int32)
        self.tables: NDArray[np.int32] = np.zeros((slots, -(-context // page_size)), dtype=np.int32)
        self.version = 0
        """Counts openings: what was gathered from the sampling parameters holds as long as it stays."""
        self.generation: Ints = np.zeros(slots, dtype=np.int64)
        """Counts closings: tells whether a slot still holds the sequence that it held when a step was launched."""
        self.live = np.zeros(slots, dtype=np.bool_)
        self.length: Ints = np.zeros(slots, dtype=np.int64)
        """Tokens: given, drawn, and being drawn."""
        self.unread: Ints = np.zeros(slots, dtype=np.int64)
        """Tokens at the end that are being drawn: their place in ``tokens`` holds -1 - slot."""
        self.committed: Ints = np.zeros(slots, dtype=np.int64)
        """Tokens at the front whose KV is in the pool."""
        self.prompt: Ints = np.zeros(slots, dtype=np.int64)
        self.pages: Ints = np.zeros(slots, dtype=np.int64)
        self.wants = np.zeros(slots, dtype=np.bool_)
        """Whether the sequence wants tokens: not with ``max_tokens`` 0, and not after a failure. Known tokens get their KV anyway,
        since others may share it."""
        self.temperature: Floats = np.zeros(slots, dtype=np.float32)
        self.top_p: Floats = np.ones(slots, dtype=np.float32)
        self.top_k: Ints = np.full(slots, -1, dtype=np.int64)
        self.min_p: Floats = np.zeros(slots, dtype=np.float32)
        self.seeds: NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        self.children: Ints = np.zeros(slots, dtype=np.int64)
        self.scores = np.zeros(slots, dtype=np.bool_)
        """Whether logprobs of the prompt are wanted."""
        self.rids: NDArray[np.object_] = np.full(slots, b"", dtype=np.object_)
        """Request that the sequence belongs to, as bytes."""
        self.params: list[SamplingParams | None] = [None] * slots
        self.special: list[Special | None] = [None] * slots
        self.is_special = np.zeros(slots, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.live)

    def close(self, slot: int) -> None:
        """Empty a slot. Raises `BadPlan` for one that does not exist."""
        self._check_exists(slot)
        self.live[slot] = self.is_special[slot] = False
        self.generation[slot] += 1
        self.special[slot] = self.params[slot] = None
        self.rids[slot] = b""

    def open(self, opened: SlotOpen) -> None:
        """Put a sequence into a free slot.

        Raises:
            BadPlan: the slot is live or does not exist, or the sequence does not fit.
        """
        slot, params = opened.slot, opened.params
        self._check_exists(slot)
        if self.live[slot]:
            raise BadPlan(f"slot {slot} is opened while it is live")
        ids = np.frombuffer(opened.ids, dtype="<u4")
        if not 0 < len(ids) < self.tokens.shape[1]:
            raise BadPlan(f"slot {slot} is opened with {len(ids)} tokens; the context holds {self.tokens.shape[1] - 1}")
        if not (0 < opened.prompt_tokens <= len(ids) and 0 <= opened.committed <= len(ids)):
            raise BadPlan(f"slot {slot} is opened with counts beyond its {len(ids)} tokens")
        if ids.max() >= self._vocab_size:
            raise BadPlan(f"slot {slot} is opened with token {ids.max()}; the vocabulary has {self._vocab_size}")
        self.version += 1
        self.live[slot] = True
        self.rids[slot] = opened.rid
        self.tokens[slot, : len(ids)] = ids
        self.length[slot], self.committed[slot] = len(ids), opened.committed
        self.prompt[slot] = opened.prompt_tokens
        self.wants[slot] = params.max_tokens > 0
        self.pages[slot] = self.unread[slot] = 0
        self.tables[slot] = self._scratch_page
        pages = np.frombuffer(opened.pages, dtype="<u4")
        self.append_pages(np.full(len(pages), slot), pages)
        self._set_sampling(slot, opened)

    def append_pages(self, slots: NDArray[np.integer], pages: NDArray[np.integer]) -> None:
        """Page ``pages[j]`` goes to the end of slot ``slots[j]``'s table. Raises `BadPlan` if one does not fit."""
        for slot, page in zip(slots.tolist(), pages.tolist(), strict=True):
            self._check_exists(slot)
            if not self.live[slot]:
                raise BadPlan(f"a page is given to slot {slot}, which is empty")
            if not 0 <= page < self._scratch_page or self.pages[slot] == self.tables.shape[1]:
                raise BadPlan(f"page {page} does not fit slot {slot}")
            self.tables[slot, self.pages[slot]] = page
            self.pages[slot] += 1

    def output_ids(self, slot: int) -> list[int]:
        """The slot's output tokens so far."""
        held: list[int] = self.tokens[slot, self.prompt[slot] : self.length[slot]].tolist()
        return held

    def expect(self, slots: Ints) -> Ints:
        """Make room for a token that is being drawn in each of these (distinct) slots; returns the tokens' positions."""
        places = self.length[slots]
        self.tokens[slots, places] = -1 - slots
        self.length[slots] = places + 1
        self.unread[slots] += 1
        return places

    def settle(self, slots: Ints, places: Ints, ids: Ints) -> None:
        """These tokens were drawn at places that `expect` gave."""
        self.tokens[slots, places] = ids
        self.unread[slots] -= 1

    def give_up(self, slot: int, place: int) -> None:
        """Nothing could be drawn at a place that `expect` gave: the sequence ends before it and wants no more."""
        self.length[slot] = place
        self.committed[slot] = min(self.committed[slot], place)
        self.unread[slot] = 0
        self.wants[slot] = False

    def _set_sampling(self, slot: int, opened: SlotOpen) -> None:
        params = opened.params
        self.temperature[slot], self.top_p[slot] = params.temperature, params.top_p
        self.top_k[slot], self.min_p[slot] = params.top_k, params.min_p
        self.seeds[slot] = opened.seed % 2**64
        self.children[slot] = opened.child
        self.params[slot] = params
        self.scores[slot] = params.prompt_logprobs >= 0
        special = self._special(slot, opened)
        self.special[slot] = special
        self.is_special[slot] = special is not None

    def _special(self, slot: int, opened: SlotOpen) -> Special | None:
        params = opened.params
        repeats = params.repetition_penalty != 1.0
        penalised = repeats or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        constrained = opened.grammar is not None
        if not (penalised or constrained or params.logit_bias or params.min_tokens > 0 or params.logprobs >= 0):
            return None
        counts = None
        if penalised:
            counts = TokenCounts(self.tokens[slot, : self.prompt[slot]].tolist() if repeats else ())
            for token in self.output_ids(slot):
                counts.add(token)
        biases = {token: bias for token, bias in params.logit_bias if token < self._vocab_size}
        ending = dict.fromkeys(id_ for id_ in (*self._eos_ids, *params.stop_token_ids) if id_ < self._vocab_size)
        return Special(
            params,
            counts,
            np.array(list(biases), dtype=np.int64),
            np.array(list(biases.values()), dtype=np.float32),
            np.array(list(ending), dtype=np.int64),
            constrained,
        )

    def _check_exists(self, slot: int) -> None:
        if not 0 <= slot < len(self.live):
            raise BadPlan(f"there is no slot {slot}")
