"""Where a chunk of known tokens ends, and how many of them a plan may take."""

from __future__ import annotations

from dataclasses import dataclass

from .worker import WorkerState

# Waiting choices that make a crowd, if no more than these decode.
CROWD = 8


@dataclass(slots=True)
class Budget:
    """Known tokens per plan: a fixed number, or as many as take so many milliseconds, up to twice that while a crowd waits."""

    chunk_ms: float
    chunk_tokens: int | None

    def tokens(self, worker: WorkerState, decode_rows: int, waiting: float = 0) -> int:
        """Known tokens that the next plan may take beside its decode rows; at least one page, so that prompts always advance.

        A longer step computes prompts faster and decodes more slowly: it is made as far as more gain by it than lose.

        Args:
            waiting: choices that wait for their first token here, on average over the workers where that is open.
        """
        milliseconds = self.chunk_ms * (1 + min(1.0, waiting / max(CROWD, decode_rows)))
        wanted = self.chunk_tokens or worker.pace.tokens_within(milliseconds, decode_rows)
        room = worker.profile.max_step_tokens - decode_rows
        return min(max(wanted, worker.cache.page_size), room)


def chunk(computed: int, known: int, reach: int, page_size: int) -> int:
    """How many known tokens a row takes with `reach` tokens of budget or pages: all that is left, or up to a page boundary."""
    if known - computed <= reach:
        return known - computed
    return max(0, (computed + reach) // page_size * page_size - computed)
