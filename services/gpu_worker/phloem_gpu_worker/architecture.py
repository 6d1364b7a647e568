"""What distinguishes one decoder of the llama family from another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. ``kind``: ``linear`` | ``llama3``."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shapes and switches of one model. All sizes count elements; ``windows`` has one entry per layer."""

    family: str
    """``llama`` | ``mistral`` | ``qwen2`` | ``qwen3``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    context_length: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """Per layer: a position sees itself and this many less one before it; None = all."""

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Output sizes of the q, k and v projections, fused in this order."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, for two-byte elements."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim
