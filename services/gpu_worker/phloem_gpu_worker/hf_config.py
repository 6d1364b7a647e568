"""Read a Hugging Face ``config.json`` into an `Architecture`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phloem_model.errors import shown

from .architecture import MOST_LAYERS, Architecture, RopeScaling
from .errors import UnsupportedModel
from .fields import Fields

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_NAME = "config.json"


def read_config(folder: Path) -> Architecture:
    """The architecture that ``folder/config.json`` describes.

    Raises:
        UnsupportedModel: the file is missing, damaged, or names something this decoder does not compute.
    """
    try:
        config = json.loads((folder / _NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedModel(f"the model's folder has no {_NAME}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{_NAME} can't be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{_NAME} is not a JSON object")
    return from_config(config)


def from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a parsed ``config.json``. Raises `UnsupportedModel`."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"{_NAME}: model_type {shown(family)} is not one of {', '.join(FAMILIES)}")
    fields = Fields(config, _NAME)
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{_NAME}: hidden_act {shown(activation)} is not silu")
    heads = fields.whole("num_attention_heads")
    hidden = fields.whole("hidden_size")
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    theta, scaling = _rope(fields)
    return Architecture(
        family=family,
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.whole("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        head_dim=fields.whole("head_dim", hidden // heads),
        rms_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        context_length=fields.whole("max_position_embeddings", 2048),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qk_norm=family == "qwen3",
        windows=_windows(fields, family, layers),
    )


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the newer ``rope_parameters`` or the older ``rope_theta`` and ``rope_scaling``."""
    rope = fields.part("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.nested:
        raise UnsupportedModel(f"{_NAME}: rotary embeddings that differ from layer to layer are not supported")
    for place in (fields, rope):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModel(f"{_NAME}: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            rope.number("factor"),
            rope.number("low_freq_factor"),
            rope.number("high_freq_factor"),
            rope.whole("original_max_position_embeddings"),
        )
    raise UnsupportedModel(f"{_NAME}: rope type {shown(kind)} is not supported")


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    window = fields.whole("sliding_window", 0, least=0)
    if not window or family == "llama" or (family.startswith("qwen") and not fields.flag("use_sliding_window", False)):
        return (None,) * layers
    if family == "mistral":
        return (window,) * layers
    kinds = fields.texts("layer_types", layers)
    if kinds is None:
        full = fields.whole("max_window_layers", layers, least=0)
        kinds = ["full_attention" if layer < full else "sliding_attention" for layer in range(layers)]
    strange = next((kind for kind in kinds if kind not in ("full_attention", "sliding_attention")), None)
    if strange is not None:
        raise UnsupportedModel(f"{_NAME}: layers of type {shown(strange)} are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
