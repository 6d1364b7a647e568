"""From a model's files to a runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .architecture import Architecture
from .attention import AttentionBackend
from .attention_torch import TorchAttention
from .compute import TorchCompute
from .decoder import Decoder, build
from .errors import BadWeights, UnsupportedModel
from .gguf_weights import GgufSource
from .hf_compute import HfCompute, HfModel
from .hf_config import read_config
from .kernels.team import Kernels
from .kv_pool import KvPool
from .linear import can_pack
from .native import NativeCompute, NativeDecoder, build_native
from .outline import Outline
from .runner import TorchRunner
from .weights import SafetensorsSource, WeightSource

MOST_DEFAULT_TOKENS = 131_072
"""Tokens a pool sized by memory may have: more than any batch of the default rows uses, and small models would otherwise take all memory."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How large the KV pool is. ``tokens`` None = what ``memory_bytes`` hold, at most `MOST_DEFAULT_TOKENS`."""

    page_size: int = 16
    tokens: int | None = None
    memory_bytes: int = 2 << 30

    def pages(self, arch: Outline, dtype: torch.dtype) -> int:
        """Whole pages of the pool."""
        per_token = arch.kv_bytes_per_token * dtype.itemsize // 2
        tokens = self.tokens if self.tokens is not None else min(self.memory_bytes // per_token, MOST_DEFAULT_TOKENS)
        return tokens // self.page_size


@dataclass(frozen=True, slots=True)
class Files:
    """A model's files, opened: what it is, its weights, and divisors of its rotary frequencies if they are stored."""

    arch: Architecture
    source: WeightSource
    factors: Tensor | None


def open_files(weights: Path) -> Files:
    """The model in a ``.gguf`` file, or in a folder with ``config.json`` and safetensors.

    Raises:
        UnsupportedModel, BadWeights: the files are no model that these decoders compute.
    """
    if weights.is_dir():
        return _whole(Files(read_config(weights), SafetensorsSource(weights), None))
    if weights.suffix == ".gguf":
        source = GgufSource(weights)
        return _whole(Files(source.architecture, source, source.rope_factors()))
    raise UnsupportedModel("weights must be a .gguf file or a folder with config.json and safetensors")


def _whole(files: Files) -> Files:
    """``files``, if no layer of theirs would be left out: a model without its last layers still speaks, but not as it should."""
    layers = files.arch.layers
    extra = f"layers.{layers}.input_layernorm.weight"
    if files.source.has(extra):
        raise BadWeights(f"weight {extra} belongs to none of the {layers} layers that the model is said to have")
    return files


def load_decoder(weights: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """The model at ``weights``, to be computed by torch. Raises as `open_files`."""
    files = open_files(weights)
    return build(files.arch, files.source, dtype, device, files.factors)


def load_native(weights: Path, dtype: torch.dtype, kernels: Kernels, quantisation: str = "none") -> NativeDecoder:
    """The model at ``weights``, to be computed by ``kernels``. Raises as `open_files`, and `UnsupportedModel` if they can't."""
    files = open_files(weights)
    return build_native(files.arch, files.source, dtype, kernels, files.factors, quantisation)


def make_runner(
    decoder: Decoder | NativeDecoder | HfModel, size: PoolSize, attention: AttentionBackend | None = None
) -> TorchRunner:
    """A runner with an empty pool; what torch computes has `TorchAttention` by default."""
    pages = size.pages(decoder.arch, decoder.dtype)
    if isinstance(decoder, NativeDecoder):
        return TorchRunner(NativeCompute(decoder, pages, size.page_size))
    pool = KvPool(decoder.arch, pages, size.page_size, decoder.dtype, decoder.device)
    attention = attention or TorchAttention()
    if isinstance(decoder, HfModel):
        return TorchRunner(HfCompute(decoder, pool, attention))
    return TorchRunner(TorchCompute(decoder, pool, attention))


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 where the hardware multiplies it, else float32."""
    if name != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
    fast = device.type == "cuda" or can_pack(torch.bfloat16, device)
    return torch.bfloat16 if fast else torch.float32
