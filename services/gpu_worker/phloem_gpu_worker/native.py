"""A decoder of the llama family as the compiled kernels compute it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from .architecture import Architecture, Projections
from .batch import Batch
from .errors import UnsupportedModel
from .kernel_sampler import KernelSampler
from .kernels import abi
from .kernels.ahead import Ahead
from .kernels.memory import aligned
from .kernels.packing import Packed, alternate, alternate_bias, pack
from .kernels.team import BatchView, Kernels
from .kv_pool import scrub_pages
from .loading import Loader
from .progress import Tick, no_tick
from .rope import frequencies
from .sampler import Sampler
from .weights import WeightSource

LANES = 16
"""Floats of a vector: heads are whole numbers of them."""
_DTYPES = {torch.bfloat16: abi.BF16, torch.float32: abi.F32}
_HEAD_BITS = 8
"""A quantised head keeps eight bits: it decides the tokens, and is often the embedding as well."""
_LOOKS = 8
"""Passes that decode between two looks at which pages are used: a row takes a token's room in each."""


def unsuited(arch: Architecture, dtype: torch.dtype) -> str | None:
    """Why the kernels can't compute this model; None if they can."""
    if dtype not in _DTYPES:
        return f"the kernels don't compute in {str(dtype).removeprefix('torch.')}"
    if arch.head_dim % LANES:
        return f"the kernels need heads of a multiple of {LANES}, not {arch.head_dim}"
    if any(window is not None for window in arch.windows):
        return "the kernels have no sliding windows"
    if arch.heads % arch.kv_heads or arch.hidden_size % 2 or arch.intermediate_size % 2:
        return "the kernels need an even hidden size and as many queries for each KV head"
    return None


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """The weights of one block, packed; norms float32."""

    input_norm: Tensor
    qkv: Packed
    out: Packed
    post_norm: Tensor
    gate_up: Packed
    down: Packed
    q_norm: Tensor | None
    k_norm: Tensor | None

    def struct(self, keys: Tensor, values: Tensor) -> abi.LayerStruct:
        """For a call, with the layer's share of a pool. Valid as long as all of them live."""
        return abi.LayerStruct(
            self.qkv.struct(),
            self.out.struct(),
            self.gate_up.struct(),
            self.down.struct(),
            self.input_norm.data_ptr(),
            self.post_norm.data_ptr(),
            None if self.q_norm is None else self.q_norm.data_ptr(),
            None if self.k_norm is None else self.k_norm.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
        )


@dataclass(frozen=True, slots=True)
class NativeDecoder:
    """A model's weights as the kernels read them. Quantised weights are multiplied with bf16 activations."""

    arch: Architecture
    dtype: torch.dtype
    kernels: Kernels
    layers: list[NativeLayer]
    head: Packed
    embedding: Tensor | None
    """[vocab, hidden]; None = the head's weights are the embedding."""
    norm: Tensor
    frequencies: Tensor

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def weight_bytes(self) -> int:
        """Bytes that a decode step reads: all matrices, the head among them."""
        parts = [part for layer in self.layers for part in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return sum(part.bytes for part in (*parts, self.head))


def build_native(
    arch: Architecture,
    source: WeightSource,
    dtype: torch.dtype,
    kernels: Kernels,
    factors: Tensor | None = None,
    quantisation: str = "none",
    tick: Tick = no_tick,
) -> NativeDecoder:
    """Load and pack a model's weights; each is dropped in its stored form at once.

    Args:
        factors: see `rope.frequencies`.
        quantisation: one of `config.QUANTISATIONS`; all but ``none`` need bfloat16.
        tick: called after each layer.

    Raises:
        BadWeights: a weight is missing, or has another shape than ``arch`` says.
        UnsupportedModel: the kernels can't compute this model.
    """
    reason = unsuited(arch, dtype)
    if reason is None and quantisation != "none" and dtype != torch.bfloat16:
        reason = "quantised weights are multiplied with bfloat16 activations, not with float32"
    if reason is not None:
        raise UnsupportedModel(reason)
    load = Loader(source, dtype, torch.device("cpu"), quantisation)
    layers = []
    for index in range(arch.layers):
        layers.append(_layer(arch, load, f"layers.{index}"))
        tick()
    shape = (arch.vocab_size, arch.hidden_size)
    tied = arch.tied_embeddings or not load.has("lm_head.weight")
    head = pack(load.matrix("embed_tokens.weight" if tied else "lm_head.weight", shape, _HEAD_BITS))
    embedding = None if tied else load.dense("embed_tokens.weight", shape)
    norm = load.dense("norm.weight", (arch.hidden_size,)).float()
    return NativeDecoder(arch, dtype, kernels, layers, head, embedding, norm, frequencies(arch, factors))


def _layer(arch: Architecture, load: Loader, name: str) -> NativeLayer:
    def norm(part: str, size: int) -> Tensor:
        return load.dense(f"{name}.{part}.weight", (size,)).float()

    return NativeLayer(
        input_norm=norm("input_layernorm", arch.hidden_size),
        qkv=_stacked(load, name, arch.projections["qkv"]),
        out=_stacked(load, name, arch.projections["out"]),
        post_norm=norm("post_attention_layernorm", arch.hidden_size),
        gate_up=_gate_up(load, name, arch.projections["gate_up"]),
        down=_stacked(load, name, arch.projections["down"]),
        q_norm=norm("self_attn.q_norm", arch.head_dim) if arch.qk_norm else None,
        k_norm=norm("self_attn.k_norm", arch.head_dim) if arch.qk_norm else None,
    )


def _stacked(load: Loader, layer: str, projections: Projections) -> Packed:
    names = projections.names(layer)
    weight = load.stacked(names, projections.outputs, projections.inputs)
    return pack(weight, load.bias(names, projections.outputs, wanted=projections.biased))


def _gate_up(load: Loader, layer: str, projections: Projections) -> Packed:
    """Blocks of both in turn, so that whoever computes one has the other beside it."""
    inner = projections.outputs[0]
    both = load.stacked(projections.names(layer), projections.outputs, projections.inputs)
    bias = load.bias(projections.names(layer), projections.outputs)
    gate, up = (
        (both[:inner], both[inner:])
        if isinstance(both, Tensor)
        else (both.rows(torch.arange(inner)), both.rows(torch.arange(inner, 2 * inner)))
    )
    return pack(alternate(gate, up), None if bias is None else alternate_bias(bias[:inner], bias[inner:]))


class NativeCompute:
    """A `NativeDecoder` and its pool, as a `Compute`."""

    def __init__(self, decoder: NativeDecoder, pages: int, page_size: int) -> None:
        self.arch = decoder.arch
        self.dtype = decoder.dtype
        self.device = decoder.device
        self.pages = pages
        self.page_size = page_size
        self.sampler: Sampler = KernelSampler(decoder.kernels)
        self._decoder = decoder
        self._kernels = decoder.kernels
        shape = (self.arch.kv_heads, pages + 1, self.arch.head_dim * page_size)
        self._keys = [aligned(shape, self.dtype) for _ in decoder.layers]
        self._values = [aligned(shape, self.dtype) for _ in decoder.layers]
        self._ahead = Ahead([head for pool in (*self._keys, *self._values) for head in pool], pages + 1)
        parts = zip(decoder.layers, self._keys, self._values, strict=True)
        layers = [layer.struct(keys, values) for layer, keys, values in parts]
        self._layers = (abi.LayerStruct * len(layers))(*layers)
        self._model = self._struct()
        self._passes = 0

    def hidden(self, batch: Batch, tokens: Tensor) -> Tensor:
        """See `Compute.hidden`."""
        self._passes += 1
        if self._passes % _LOOKS == 0 or len(tokens) > len(batch.counts):
            self._ahead.used(int(batch.last_pages(self.page_size).max()))
        hidden = torch.empty(len(tokens), self.arch.hidden_size, dtype=self.dtype)
        self._kernels.forward(self._model, BatchView(batch, tokens), hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute.logits`."""
        return self._kernels.multiply(self._decoder.head, hidden)

    def scrub(self, pages: Tensor) -> None:
        """See `Compute.scrub`."""
        scrub_pages((head for pool in (*self._keys, *self._values) for head in pool), pages)

    def _struct(self) -> abi.ModelStruct:
        decoder, arch = self._decoder, self.arch
        return abi.ModelStruct(
            ctypes.cast(self._layers, ctypes.POINTER(abi.LayerStruct)),
            decoder.head.struct(),
            None if decoder.embedding is None else decoder.embedding.data_ptr(),
            decoder.norm.data_ptr(),
            decoder.frequencies.data_ptr(),
            arch.layers,
            _DTYPES[self.dtype],
            arch.hidden_size,
            arch.intermediate_size,
            arch.heads,
            arch.kv_heads,
            arch.head_dim,
            arch.vocab_size,
            self.page_size,
            self.pages + 1,
            arch.rms_eps,
        )
