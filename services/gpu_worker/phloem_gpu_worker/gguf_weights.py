"""Weights and architecture from a GGUF file, dequantised.

Two things a converter did are undone or followed here. For the ``llama`` architecture it reordered the rows of the q and k projections
from "first half, second half" of each head to interleaved pairs; `_unpermute` turns that back (qwen files are not reordered). Llama 3's
frequency scaling is stored ready-made as a tensor of divisors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor

from phloem_model.errors import ModelBroken
from phloem_model.gguf_header import TensorInfo, read_header

from .architecture import Architecture, RopeScaling
from .errors import BadWeights, UnsupportedModel
from .gguf_blocks import GROUPED
from .grouped import Grouped

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
GROUP = 1 << 16
"""Elements that are dequantised together."""
_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


class GgufSource:
    """A GGUF file as a `WeightSource`; `architecture` says what model it holds.

    Raises:
        UnsupportedModel: the file is no GGUF, or of an architecture this decoder does not compute.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fields, self._tensors = read_header(path)
        except ModelBroken as error:
            raise UnsupportedModel(f"not a readable GGUF file: {error}") from None
        self._bytes = np.memmap(path, np.uint8, "r")
        self.architecture = self._read_architecture()

    def has(self, name: str) -> bool:
        return _stored_name(name) in self._tensors

    def get(self, name: str) -> Tensor:
        """The weight as float32, rows in Hugging Face's order."""
        stored = _stored_name(name)
        if stored not in self._tensors:
            raise BadWeights(f"weight {name} is missing")
        weight = self._dequantised(stored)
        heads = self._permuted(stored)
        return weight if heads is None else _unpermute(weight, heads)

    def quantised(self, name: str) -> bool:
        kind = GGMLQuantizationType(self._tensors[_stored_name(name)].kind)
        return kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)

    def grouped(self, name: str) -> Grouped | None:
        """The weight's own numbers: Q4_0, Q4_1 and Q8_0 only."""
        stored = _stored_name(name)
        if stored not in self._tensors:
            raise BadWeights(f"weight {name} is missing")
        info = self._tensors[stored]
        kind, block, size = _layout(stored, info)
        if kind not in GROUPED or len(info.shape) != 2:
            return None
        blocks = self._raw(stored, info, block, size).reshape(*info.shape[:-1], -1, size)
        weight = GROUPED[kind](np.array(blocks))
        heads = self._permuted(stored)
        if heads is None:
            return weight
        return weight.rows(_unpermute(torch.arange(info.shape[0]), heads))

    def _permuted(self, stored: str) -> int | None:
        """The number of heads whose rows the converter reordered, if this is such a weight."""
        if self.architecture.family != "llama" or not stored.startswith("blk."):
            return None
        return {"attn_q": self.architecture.heads, "attn_k": self.architecture.kv_heads}.get(stored.split(".")[2])

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies: float32 [head_dim / 2], or None."""
        if "rope_freqs.weight" not in self._tensors:
            return None
        return self._dequantised("rope_freqs.weight")

    def _dequantised(self, stored: str) -> Tensor:
        """A tensor of the file as float32. Blocks are taken in groups that a core's cache holds: the package's own are 16 rows, too small."""
        info = self._tensors[stored]
        kind, block, size = _layout(stored, info)
        blocks = info.elements // block
        raw = self._raw(stored, info, block, size)
        weight = np.empty((blocks, block), np.float32)
        step = max(1, GROUP // block)
        for first in range(0, blocks, step):
            group = raw[first * size : (first + step) * size]
            weight[first : first + step] = dequantize(group[None], kind).reshape(-1, block)
        return torch.from_numpy(weight.reshape(info.shape))

    def _raw(self, stored: str, info: TensorInfo, block: int, size: int) -> NDArray[np.uint8]:
        """A tensor's bytes."""
        end = info.offset + info.elements // block * size
        raw = self._bytes[info.offset : end]
        if info.offset + raw.size < end:
            raise BadWeights(f"weight {stored} is cut short")
        return raw

    def _read_architecture(self) -> Architecture:
        stored = self._value("general.architecture", "")
        if stored not in _FAMILIES:
            raise UnsupportedModel(f"GGUF architecture {stored!r} is not one of {', '.join(_FAMILIES)}")

        def number(key: str, default: Any = None) -> Any:
            return self._value(f"{stored}.{key}", default)

        heads = int(number("attention.head_count"))
        hidden = int(number("embedding_length"))
        layers = int(number("block_count"))
        head_dim = int(number("attention.key_length", 0) or hidden // heads)
        if int(number("rope.dimension_count", 0) or head_dim) != head_dim:
            raise UnsupportedModel("rope.dimension_count other than the head size is not supported")
        window = number("attention.sliding_window", 0)
        return Architecture(
            family=_FAMILIES[stored],
            vocab_size=self._tensors["token_embd.weight"].shape[0],
            hidden_size=hidden,
            intermediate_size=int(number("feed_forward_length")),
            layers=layers,
            heads=heads,
            kv_heads=int(number("attention.head_count_kv", 0) or heads),
            head_dim=head_dim,
            rms_eps=float(number("attention.layer_norm_rms_epsilon", 1e-6)),
            context_length=int(number("context_length", 2048)),
            rope_theta=float(number("rope.freq_base", 10000.0)),
            rope_scaling=_scaling(number("rope.scaling.type", "none"), number("rope.scaling.factor", 1.0)),
            tied_embeddings="output.weight" not in self._tensors,
            qk_norm=stored == "qwen3",
            windows=(int(window) if window else None,) * layers,
        )

    def _value(self, key: str, default: Any) -> Any:
        return self._fields.get(key, default)


def _layout(stored: str, info: TensorInfo) -> tuple[GGMLQuantizationType, int, int]:
    """The type of a tensor, and how many elements and bytes its blocks have."""
    try:
        kind = GGMLQuantizationType(info.kind)
        block, size = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, size), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise UnsupportedModel(f"weight {stored} is of a type that can't be dequantised ({info.kind})") from None
    if info.shape and info.shape[-1] % block:
        raise BadWeights(f"weight {stored} has rows of {info.shape[-1]}, no multiple of its type's {block}")
    return kind, block, size


def _stored_name(name: str) -> str:
    """GGUF's name of a canonical weight, e.g. ``layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("layers."):
        _, layer, inner = stem.split(".", 2)
        return f"blk.{layer}.{LAYER_NAMES.get(inner, inner)}.{kind}"
    return f"{_TOP_NAMES.get(stem, stem)}.{kind}"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Interleaved pairs back to halves: row 2i + j of a head becomes row i + j * head_dim / 2."""
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _scaling(kind: str, factor: float) -> RopeScaling | None:
    if kind in ("none", ""):
        return None
    if kind == "linear":
        return RopeScaling("linear", float(factor))
    raise UnsupportedModel(f"GGUF rope scaling {kind!r} is not supported")
