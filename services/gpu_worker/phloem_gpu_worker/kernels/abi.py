"""The C interface of the kernels, as ``abi.h`` says it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, cast

from .build import NoKernels

BF16, F32, INT8, INT4 = range(4)
"""Kinds of weights; the first two are also those of activations and KV."""


class LinearStruct(Structure):
    """``PhloemLinear``"""

    _fields_ = [
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
        ("kind", c_int32),
        ("blocks", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
    ]


class LayerStruct(Structure):
    """``PhloemLayer``"""

    _fields_ = [
        ("qkv", LinearStruct),
        ("out", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class ModelStruct(Structure):
    """``PhloemModel``"""

    _fields_ = [
        ("layers", POINTER(LayerStruct)),
        ("head", LinearStruct),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("frequencies", c_void_p),
        ("layer_count", c_int32),
        ("dtype", c_int32),
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab", c_int32),
        ("page_size", c_int32),
        ("pages", c_int32),
        ("epsilon", c_float),
    ]


class BatchStruct(Structure):
    """``PhloemBatch``"""

    _fields_ = [
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("starts", c_void_p),
        ("counts", c_void_p),
        ("tables", c_void_p),
        ("token_count", c_int32),
        ("row_count", c_int32),
        ("table_width", c_int32),
    ]


class DrawsStruct(Structure):
    """``PhloemDraws``"""

    _fields_ = [
        ("logits", c_void_p),
        ("at", c_void_p),
        ("temperature", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("top_k", c_void_p),
        ("seeds", c_void_p),
        ("children", c_void_p),
        ("positions", c_void_p),
        ("penalised_rows", c_void_p),
        ("penalised_ids", c_void_p),
        ("repetition", c_void_p),
        ("subtract", c_void_p),
        ("biased_rows", c_void_p),
        ("biased_ids", c_void_p),
        ("biases", c_void_p),
        ("masked_rows", c_void_p),
        ("masks", c_void_p),
        ("ids", c_void_p),
        ("best", c_void_p),
        ("faults", c_void_p),
        ("rows", c_int32),
        ("vocab", c_int32),
        ("penalised", c_int32),
        ("biased", c_int32),
        ("masked", c_int32),
        ("mask_words", c_int32),
    ]


class ScoresStruct(Structure):
    """``PhloemScores``"""

    _fields_ = [
        ("logits", c_void_p),
        ("at", c_void_p),
        ("targets", c_void_p),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
        ("rows", c_int32),
        ("vocab", c_int32),
        ("top", c_int32),
    ]


_STRUCTS = (LinearStruct, LayerStruct, ModelStruct, BatchStruct, DrawsStruct, ScoresStruct)
_LINEAR, _LAYER, _MODEL, _BATCH, _DRAWS, _SCORES = map(POINTER, _STRUCTS)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "phloem_sizes": (None, [c_int32 * len(_STRUCTS)]),
    "phloem_level": (c_char_p, []),
    "phloem_team_new": (c_void_p, [c_int32, c_int64, POINTER(c_int32), c_int32]),
    "phloem_team_free": (None, [c_void_p]),
    "phloem_workspace": (c_int64, [_MODEL, c_void_p, _BATCH]),
    "phloem_forward": (None, [_MODEL, c_void_p, _BATCH, c_void_p, c_void_p]),
    "phloem_multiply_workspace": (c_int64, [_LINEAR, c_void_p, c_int32]),
    "phloem_multiply": (None, [_LINEAR, c_void_p, c_void_p, c_int32, c_void_p, c_void_p]),
    "phloem_attend_workspace": (c_int64, [_MODEL, _BATCH]),
    "phloem_attend": (None, [_MODEL, _LAYER, c_void_p, _BATCH, c_void_p, c_void_p, c_void_p]),
    "phloem_store": (None, [_MODEL, _LAYER, _BATCH, c_void_p, c_void_p]),
    "phloem_draw_workspace": (c_int64, [_DRAWS, c_void_p]),
    "phloem_draw": (None, [_DRAWS, c_void_p, c_void_p]),
    "phloem_score_workspace": (c_int64, [_SCORES, c_void_p]),
    "phloem_score": (None, [_SCORES, c_void_p, c_void_p]),
}


def load(path: Path) -> Any:
    """The library at ``path``, its functions typed. Calls let other Python threads run.

    Raises:
        NoKernels: it can't be loaded, or is of another version.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoKernels(f"the kernels at {path} can't be loaded: {error}") from None
    sizes = (c_int32 * len(_STRUCTS))()
    library.phloem_sizes(sizes)
    if list(sizes) != [ctypes.sizeof(kind) for kind in _STRUCTS]:
        raise NoKernels(f"the kernels at {path} are of another version")
    return library


def level_of(library: Any) -> str:
    """What a loaded library was compiled for."""
    return cast(bytes, library.phloem_level()).decode()
