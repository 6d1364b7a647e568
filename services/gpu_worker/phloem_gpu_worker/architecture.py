"""What distinguishes one decoder of the llama family from another."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UnsupportedModel

MOST_LAYERS = 4096
"""No model has more: a larger number comes from a damaged file."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. ``kind``: ``linear`` | ``llama3``. Raises `UnsupportedModel`."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModel("the rotary scaling's low_freq_factor is not below its high_freq_factor")


@dataclass(frozen=True, slots=True)
class Projections:
    """Matrices of one block that read the same input and are held as one."""

    part: str
    """``self_attn`` | ``mlp``"""
    projections: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int
    biased: bool = False
    """Whether biases belong to them; where not, there may be some."""

    def names(self, layer: str) -> tuple[str, ...]:
        """The weights' canonical names in a block called ``layer``."""
        return tuple(f"{layer}.{self.part}.{projection}.weight" for projection in self.projections)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shapes and switches of one model. All sizes count elements; ``windows`` has one entry per layer.

    Raises:
        UnsupportedModel: the heads don't fit each other or their size.
    """

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

    def __post_init__(self) -> None:
        if self.head_dim < 2 or self.head_dim % 2:
            raise UnsupportedModel(f"heads of {self.head_dim} numbers have no pairs to rotate")
        if self.heads % self.kv_heads:
            raise UnsupportedModel(f"{self.heads} attention heads can't share {self.kv_heads} KV heads evenly")

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Output sizes of the q, k and v projections, fused in this order."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim

    @property
    def projections(self) -> dict[str, Projections]:
        """The matrices of a block, by what they are fused to."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "qkv": Projections(
                "self_attn", ("q_proj", "k_proj", "v_proj"), self.qkv_rows, hidden, self.family == "qwen2"
            ),
            "out": Projections("self_attn", ("o_proj",), (hidden,), self.heads * self.head_dim),
            "gate_up": Projections("mlp", ("gate_proj", "up_proj"), (inner, inner), hidden),
            "down": Projections("mlp", ("down_proj",), (hidden,), inner),
        }

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, for two-byte elements."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim
