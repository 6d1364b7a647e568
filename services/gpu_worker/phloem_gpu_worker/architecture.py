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
class Projections:
    """Matrices of one block that read the same input and are held as one."""

    part: str
    """``self_attn`` | ``mlp``"""
    projections: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int

    def names(self, layer: str) -> tuple[str, ...]:
        """The weights' canonical names in a block called ``layer``."""
        return tuple(f"{layer}.{self.part}.{projection}.weight" for projection in self.projections)


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
    def projections(self) -> dict[str, Projections]:
        """The matrices of a block, by what they are fused to."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "qkv": Projections("self_attn", ("q_proj", "k_proj", "v_proj"), self.qkv_rows, hidden),
            "out": Projections("self_attn", ("o_proj",), (hidden,), self.heads * self.head_dim),
            "gate_up": Projections("mlp", ("gate_proj", "up_proj"), (inner, inner), hidden),
            "down": Projections("mlp", ("down_proj",), (hidden,), inner),
        }

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, for two-byte elements."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim
