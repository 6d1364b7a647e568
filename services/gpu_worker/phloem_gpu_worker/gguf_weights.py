"""Weights and architecture from a GGUF file, dequantised.

Two things a converter did are undone or followed here. For the ``llama`` architecture it reordered the rows of the q and k projections
from "first half, second half" of each head to interleaved pairs; `_unpermuted` turns that back (qwen files are not reordered). Llama 3's
frequency scaling is stored ready-made as a tensor of divisors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor

from phloem_model.errors import ModelBroken, shown
from phloem_model.gguf_header import TensorInfo, read_header

from .architecture import MOST_LAYERS, Architecture, RopeScaling
from .errors import BadWeights, UnsupportedModel
from .fields import Fields
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
_EMBEDDING, _ROPE_FACTORS = "token_embd.weight", "rope_freqs.weight"
_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


class GgufSource:
    """A GGUF file as a `WeightSource`; `architecture` says what model it holds.

    Raises:
        UnsupportedModel: the file is no GGUF, or of an architecture this decoder does not compute.

    Raises (its methods):
        BadWeights: a weight is missing, cut short or of an impossible shape.
        UnsupportedModel: a weight is of a type that can't be dequantised.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fields, self._tensors = read_header(path)
        except ModelBroken as error:
            raise UnsupportedModel(f"not a readable GGUF file: it {error.problem}") from None
        self._bytes = np.memmap(path, np.uint8, "r")
        self.architecture = self._read_architecture()

    def has(self, name: str) -> bool:
        return _stored_name(name) in self._tensors

    def get(self, name: str) -> Tensor:
        """The weight as float32, rows in Hugging Face's order."""
        stored = _stored_name(name)
        order = self._order(stored, self._info(stored))
        weight = self._dequantised(stored)
        return weight if order is None else weight[order]

    def quantised(self, name: str) -> bool:
        kind = GGMLQuantizationType(self._info(_stored_name(name)).kind)
        return kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)

    def grouped(self, name: str) -> Grouped | None:
        """The weight's own numbers: Q4_0, Q4_1 and Q8_0 only."""
        stored = _stored_name(name)
        info = self._info(stored)
        kind, block, size = _layout(stored, info)
        if kind not in GROUPED or len(info.shape) != 2:
            return None
        blocks = self._raw(stored, info, block, size).reshape(*info.shape[:-1], -1, size)
        weight = GROUPED[kind](blocks)
        order = self._order(stored, info)
        return weight if order is None else weight.rows(order)

    def _info(self, stored: str) -> TensorInfo:
        if stored not in self._tensors:
            raise BadWeights(f"weight {stored} is missing")
        return self._tensors[stored]

    def _order(self, stored: str, info: TensorInfo) -> Tensor | None:
        """Where each row of a weight lies that the converter reordered: int64 [rows]. None for others."""
        if self.architecture.family != "llama" or not stored.startswith("blk."):
            return None
        arch = self.architecture
        heads = {"attn_q": arch.heads, "attn_k": arch.kv_heads}.get(stored.split(".")[2])
        if heads is None:
            return None
        if not info.shape or info.shape[0] != heads * arch.head_dim:
            raise BadWeights(f"weight {stored} has shape {info.shape}, not {heads * arch.head_dim} rows")
        return _unpermuted(heads, arch.head_dim)

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies: float32 [head_dim / 2], or None."""
        if _ROPE_FACTORS not in self._tensors:
            return None
        wanted = (self.architecture.head_dim // 2,)
        if self._info(_ROPE_FACTORS).shape != wanted:
            raise BadWeights(f"weight {_ROPE_FACTORS} has shape {self._info(_ROPE_FACTORS).shape}, not {wanted}")
        factors = self._dequantised(_ROPE_FACTORS)
        if not ((factors > 0) & factors.isfinite()).all():
            raise BadWeights(f"weight {_ROPE_FACTORS} has divisors that are no positive numbers")
        return factors

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
            with np.errstate(all="ignore"):  # a scale that is not a number; whoever loads the weight looks for those
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
        stored = self._fields.get("general.architecture", "")
        if not isinstance(stored, str) or stored not in _FAMILIES:
            raise UnsupportedModel(f"GGUF architecture {shown(stored)} is not one of {', '.join(_FAMILIES)}")
        fields = Fields(self._fields, "metadata", f"{stored}.")
        heads = fields.whole("attention.head_count")
        hidden = fields.whole("embedding_length")
        layers = fields.whole("block_count", most=MOST_LAYERS)
        head_dim = fields.whole("attention.key_length", hidden // heads)
        for name in ("rope.dimension_count", "attention.value_length"):
            if fields.whole(name, head_dim) != head_dim:
                raise UnsupportedModel(f"{name} other than the head size is not supported")
        window = fields.whole("attention.sliding_window", 0, least=0)
        return Architecture(
            family=_FAMILIES[stored],
            vocab_size=self._vocabulary(),
            hidden_size=hidden,
            intermediate_size=fields.whole("feed_forward_length"),
            layers=layers,
            heads=heads,
            kv_heads=fields.whole("attention.head_count_kv", heads),
            head_dim=head_dim,
            rms_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-6, zero=True),
            context_length=fields.whole("context_length", 2048),
            rope_theta=fields.number("rope.freq_base", 10000.0),
            rope_scaling=_scaling(fields),
            tied_embeddings="output.weight" not in self._tensors,
            qk_norm=stored == "qwen3",
            windows=(window or None,) * layers,
        )

    def _vocabulary(self) -> int:
        """How many tokens there are embeddings of."""
        info = self._info(_EMBEDDING)
        if len(info.shape) != 2:
            raise BadWeights(f"weight {_EMBEDDING} has shape {info.shape}, which is no matrix")
        return info.shape[0]


def _layout(stored: str, info: TensorInfo) -> tuple[GGMLQuantizationType, int, int]:
    """The type of a tensor, and how many elements and bytes its blocks have."""
    try:
        kind = GGMLQuantizationType(info.kind)
        block, size = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, size), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise UnsupportedModel(f"weight {stored} is of a type that can't be dequantised ({info.kind})") from None
    if not all(info.shape):
        raise BadWeights(f"weight {stored} is empty: its shape is {info.shape}")
    row = info.shape[-1] if info.shape else 1
    if row % block:
        raise BadWeights(f"weight {stored} has rows of {row}, no multiple of its type's {block}")
    return kind, block, size


def _stored_name(name: str) -> str:
    """GGUF's name of a canonical weight, e.g. ``layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("layers."):
        _, layer, inner = stem.split(".", 2)
        return f"blk.{layer}.{LAYER_NAMES.get(inner, inner)}.{kind}"
    return f"{_TOP_NAMES.get(stem, stem)}.{kind}"


def _unpermuted(heads: int, head_dim: int) -> Tensor:
    """Interleaved pairs back to halves: row 2i + j of a head becomes row i + j * head_dim / 2."""
    return torch.arange(heads * head_dim).view(heads, head_dim // 2, 2).transpose(1, 2).flatten()


def _scaling(fields: Fields) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind in ("none", ""):
        return None
    if kind == "linear":
        return RopeScaling("linear", fields.number("rope.scaling.factor", 1.0))
    raise UnsupportedModel(f"GGUF rope scaling {shown(kind)} is not supported")
