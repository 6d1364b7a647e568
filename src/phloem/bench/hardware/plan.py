"""What `phloem bench hardware` is to measure."""

from __future__ import annotations

from dataclasses import dataclass

QUANTISATIONS = ("none", "int8", "int4")
"""Weights that are compared by default; ``stored`` takes what a file has."""
MOST_ROWS, MOST_PROMPT = 1024, 8192


@dataclass(frozen=True, slots=True)
class HardwarePlan:
    """Raises ``ValueError`` for what can't be measured."""

    model: str = "smollm2"
    quantize: tuple[str, ...] = QUANTISATIONS
    rows: tuple[int, ...] = (1, 4, 16, 64)
    """Sequences of a decode step."""
    prompts: tuple[int, ...] = (64, 128, 256, 512)
    """Tokens of a prompt that is computed in one step."""
    context: int = 64
    """Tokens that a sequence has before it decodes."""
    rounds: int = 5
    """Everything is measured once per round, all within seconds; what is told are medians over rounds."""
    tries: int = 3
    """Repetitions within a round."""
    buffer_mb: int = 1024
    """Memory that is read for the bandwidth: far more than any cache holds."""
    square: int = 2048
    """Rows, inputs and outputs of the product that says the matrix rate."""
    threads: int = 0
    """0 = as many as a worker would take."""
    page_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        _check(bool(self.quantize), "--quantize: nothing to measure")
        _check(bool(self.rows) and all(1 <= one <= MOST_ROWS for one in self.rows), f"--rows: 1 to {MOST_ROWS} each")
        _check(
            bool(self.prompts) and all(2 <= one <= MOST_PROMPT for one in self.prompts),
            f"--prompts: 2 to {MOST_PROMPT} tokens each",
        )
        _check(1 <= self.context <= MOST_PROMPT, f"--context: 1 to {MOST_PROMPT} tokens")
        _check(1 <= self.rounds <= 100, "--rounds: 1 to 100")
        _check(1 <= self.tries <= 100, "--tries: 1 to 100")
        _check(1 <= self.buffer_mb <= 65_536, "--buffer-mb: 1 to 65536")
        _check(64 <= self.square <= 16_384, "--square: 64 to 16384")
        _check(0 <= self.threads <= 1024, "--threads: 0 to 1024")

    @property
    def pool_tokens(self) -> int:
        """Room that the widest decode step or the longest prompt needs, in whole pages of each sequence."""
        return max(max(self.rows) * self.row_pages, -(-max(self.prompts) // self.page_size)) * self.page_size

    @property
    def row_pages(self) -> int:
        """Pages of a sequence that decodes."""
        return -(-(self.context + 1) // self.page_size)


def _check(good: bool, message: str) -> None:
    if not good:
        raise ValueError(message)
