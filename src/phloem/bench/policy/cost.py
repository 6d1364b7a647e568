"""What a step takes on the device that is simulated."""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT_UNIT = 1024
"""Tokens of context that `Cost.attention_ms` is for."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A step's time is a sum of these, in milliseconds. The defaults are about those of SmolLM2-135M on two CPU cores."""

    base_ms: float = 6.0
    """Each step that has a row."""
    prompt_ms: float = 0.3
    """Each token of a prompt that is computed."""
    row_ms: float = 0.25
    """Each row that draws its next token."""
    attention_ms: float = 0.6
    """Each `CONTEXT_UNIT` tokens that a row attends to."""

    def __post_init__(self) -> None:
        if min(self.base_ms, self.prompt_ms, self.row_ms, self.attention_ms) < 0:
            raise ValueError("costs must not be negative")
        if not self.base_ms + min(self.prompt_ms, self.row_ms) > 0:
            raise ValueError("a step must take time")

    def step_ms(self, prompt_tokens: int, decode_rows: int, context: int) -> float:
        """Time of a step: tokens of prompts, rows that decode, and the tokens that all rows together attend to."""
        if not (prompt_tokens or decode_rows):
            return 0.0
        tokens = prompt_tokens * self.prompt_ms + decode_rows * self.row_ms
        return self.base_ms + tokens + context * self.attention_ms / CONTEXT_UNIT
