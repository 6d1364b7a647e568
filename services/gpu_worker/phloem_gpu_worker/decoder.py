"""One decoder for the llama family: llama, mistral, qwen2 (biases on q, k, v) and qwen3 (norms on q and k)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .architecture import Architecture, Projections
from .linear import Linear, linear
from .loading import Loader
from .progress import Tick, no_tick
from .rope import angles, frequencies, rotate
from .weights import WeightSource

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, heads, head_dim], k and v [T, kv_heads, head_dim]) -> [T, heads * head_dim]; stores k and v first."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one block; projections that read the same input are fused."""

    input_norm: Tensor
    qkv: Linear
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None


class Decoder:
    """The computation from token ids to logits. Knows nothing of pages or batches: attention is passed in."""

    def __init__(
        self, arch: Architecture, embedding: Tensor, layers: list[Layer], norm: Tensor, head: Linear, inverse: Tensor
    ) -> None:
        self.arch = arch
        self.dtype = embedding.dtype
        self.device = embedding.device
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._inverse = inverse
        self._split = arch.qkv_rows

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states, normalised: ``ids`` and ``positions`` int64 [T] -> [T, hidden]."""
        state = self._embedding[ids]
        cos, sin = angles(self._inverse, positions, self.dtype)
        for index, layer in enumerate(self._layers):
            state = state + self._attention(index, layer, self._rms(state, layer.input_norm), cos, sin, attend)
            gate, up = layer.gate_up(self._rms(state, layer.post_norm)).chunk(2, dim=-1)
            state = state + layer.down(F.silu(gate) * up)
        return self._rms(state, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [N, vocab] of hidden states [N, hidden]."""
        return self._head(hidden).float()

    def _attention(self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        arch = self.arch
        fused = layer.qkv(x).view(x.shape[0], -1, arch.head_dim)
        both = arch.heads + arch.kv_heads
        qk, v = fused[:, :both], fused[:, both:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, : arch.heads], qk[:, arch.heads :]
            qk = torch.cat((self._rms(q, layer.q_norm), self._rms(k, layer.k_norm)), dim=1)
        turned = rotate(qk, cos, sin)
        return layer.out(attend(index, turned[:, : arch.heads], turned[:, arch.heads :], v))

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.arch.rms_eps)


def build(
    arch: Architecture,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    factors: Tensor | None = None,
    tick: Tick = no_tick,
) -> Decoder:
    """Load a decoder's weights, converted to ``dtype`` on ``device``; each is dropped from the source's form at once.

    Args:
        factors: see `rope.frequencies`.
        tick: called after each layer.

    Raises:
        BadWeights: one is missing or has another shape than ``arch`` says.
    """
    load = Loader(source, dtype, device)
    layers = []
    for index in range(arch.layers):
        layers.append(_layer(arch, load, f"layers.{index}"))
        tick()
    embedding = load.dense("embed_tokens.weight", (arch.vocab_size, arch.hidden_size))
    tied = arch.tied_embeddings or not source.has("lm_head.weight")
    head = embedding if tied else load.dense("lm_head.weight", (arch.vocab_size, arch.hidden_size))
    norm = load.dense("norm.weight", (arch.hidden_size,))
    return Decoder(arch, embedding, layers, norm, linear(head), frequencies(arch, factors).to(device))


def _layer(arch: Architecture, load: Loader, name: str) -> Layer:
    hidden = arch.hidden_size

    def fused(projections: Projections) -> Linear:
        names, outputs, inputs = projections.names(name), projections.outputs, projections.inputs
        weights = [load.dense(one, (rows, inputs)) for one, rows in zip(names, outputs, strict=True)]
        return linear(torch.cat(weights), load.bias(names, outputs, wanted=projections.biased))

    return Layer(
        input_norm=load.dense(f"{name}.input_layernorm.weight", (hidden,)),
        qkv=fused(arch.projections["qkv"]),
        out=fused(arch.projections["out"]),
        post_norm=load.dense(f"{name}.post_attention_layernorm.weight", (hidden,)),
        gate_up=fused(arch.projections["gate_up"]),
        down=fused(arch.projections["down"]),
        q_norm=load.dense(f"{name}.self_attn.q_norm.weight", (arch.head_dim,)) if arch.qk_norm else None,
        k_norm=load.dense(f"{name}.self_attn.k_norm.weight", (arch.head_dim,)) if arch.qk_norm else None,
    )
