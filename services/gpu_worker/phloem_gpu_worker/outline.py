"""What a pool and a plan must know of a model."""

from __future__ import annotations

from typing import Protocol


class Outline(Protocol):
    """A model from outside. All sizes count elements."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int:
        """Most tokens of a sequence."""
        ...

    @property
    def layers(self) -> int:
        """Entries that each token has in the pool."""
        ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, for two-byte elements."""
        ...
