"""What `phloem bench quality` is to measure."""

from __future__ import annotations

from dataclasses import dataclass

QUANTISATIONS = ("int8", "int4", "stored")
"""Compared with the model's own weights; ``stored`` is for GGUF files."""
MOST_PROMPTS = 16
"""Each begins a paragraph of the text."""
MOST_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class QualityPlan:
    """Raises ``ValueError`` for what can't be measured."""

    model: str = "smollm2"
    quantize: tuple[str, ...] = QUANTISATIONS
    window: int = 512
    """Tokens of the text that are read together: each is predicted from those before it."""
    windows: int = 0
    """How many of them; 0 = the whole text."""
    prompts: int = MOST_PROMPTS
    prompt_tokens: int = 24
    tokens: int = 64
    """Tokens that each prompt is continued by."""
    threads: int = 0
    """0 = as many as a worker would take."""
    page_size: int = 16

    def __post_init__(self) -> None:
        _check(2 <= self.window <= MOST_WINDOW, f"--window: 2 to {MOST_WINDOW} tokens")
        _check(0 <= self.windows <= 1024, "--windows: 0 to 1024")
        _check(1 <= self.prompts <= MOST_PROMPTS, f"--prompts: 1 to {MOST_PROMPTS}")
        _check(1 <= self.prompt_tokens <= 256, "--prompt-tokens: 1 to 256")
        _check(1 <= self.tokens <= 1024, "--tokens: 1 to 1024")
        _check(0 <= self.threads <= 1024, "--threads: 0 to 1024")

    @property
    def pages(self) -> int:
        """Of one sequence, the longest there is."""
        # One more than asked for: a tokenizer may want a mark in front.
        return -(-max(self.window, self.prompt_tokens + self.tokens + 1) // self.page_size)


def _check(good: bool, message: str) -> None:
    if not good:
        raise ValueError(message)
