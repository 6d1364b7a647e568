"""Settings of the tokenizer service, validated at start."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_bus.errors import ConfigError
from phloem_tokenizer.streams import MAX_STREAMS

MAX_CALLS = 64


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What an operator may set. Raises ConfigError naming the flag."""

    model: str = "smollm2"
    """A name, path or hub id, as `phloem_model.resolve` takes it."""
    max_streams: int = MAX_STREAMS
    """Live requests whose output this instance detokenises; further ones are told ``busy``."""
    max_calls: int = MAX_CALLS
    """Prompts being encoded or waiting for a thread; further ones are told ``busy``. Each may be as large as the bus's
    largest message."""

    def __post_init__(self) -> None:
        for flag, value in (("--max-streams", self.max_streams), ("--max-calls", self.max_calls)):
            if value < 1:
                raise ConfigError(flag, f"must be at least 1, not {value}")
