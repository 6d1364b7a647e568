"""The requests of a Mooncake trace, at a sixteenth of their lengths: a block of 512 tokens becomes one of 32.

A trace tells which blocks prompts have in common, not what is in them: tokens are made from the blocks' ids. Of answers it tells the lengths
only; their tokens are taken to be in no prompt, so nobody finds an answer cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import count

from phloem.bench.traces import MOONCAKE_BLOCK_TOKENS, Arrival
from phloem_proto.codec import pack_ids

from .calls import Call

SCALE = 16
BLOCK = MOONCAKE_BLOCK_TOKENS // SCALE
_OWN = 1 << 31  # token ids from here on are of answers, and of prompts' ends that no block covers


def calls_of(arrivals: Iterable[Arrival]) -> list[Call]:
    """Calls in order of arrival."""
    blocks: dict[int, int] = {}
    own = count(_OWN)
    calls = []
    for arrival in arrivals:
        tokens = array("I")
        for block in arrival.blocks:
            first = blocks.setdefault(block, len(blocks)) * BLOCK
            tokens.extend(range(first, first + BLOCK))
        length = max(1, round(arrival.input_tokens / SCALE))
        prompt = tokens[:length]
        prompt.extend(next(own) for _ in range(length - len(prompt)))
        answer = array("I", (next(own) for _ in range(max(1, round(arrival.output_tokens / SCALE)))))
        calls.append(Call(pack_ids(prompt), answer))
    return calls
