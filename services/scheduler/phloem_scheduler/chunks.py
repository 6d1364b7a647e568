"""Where a chunk of known tokens ends, and how many of them a plan may take."""

from __future__ import annotations

from dataclasses import dataclass

from .worker import WorkerState


@dataclass(slots=True)
class Budget:
    """Known tokens per plan: a fixed number, or as many as take so many milliseconds."""

    chunk_ms: float
    chunk_tokens: int | None

    def tokens(self, worker: WorkerState, decode_rows: int) -> int:
        """Known tokens that the next plan may take beside its decode rows; at least one page, so that prompts always advance."""
        wanted = self.chunk_tokens or worker.pace.tokens_within(self.chunk_ms, decode_rows)
        room = worker.profile.max_step_tokens - decode_rows
        return min(max(wanted, worker.cache.page_size), room)


def chunk(computed: int, known: int, reach: int, page_size: int) -> int:
    """How many known tokens a row takes with `reach` tokens of budget or pages: all that is left, or up to a page boundary."""
    if known - computed <= reach:
        return known - computed
    return max(0, (computed + reach) // page_size * page_size - computed)
