"""Read a Hugging Face ``config.json`` into an `Architecture`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .architecture import Architecture, RopeScaling
from .errors import UnsupportedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def read_config(folder: Path) -> Architecture:
    """The architecture that ``folder/config.json`` describes.

    Raises:
        UnsupportedModel: the file is missing or names something this decoder does not compute.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedModel("the model's folder has no config.json") from None
    except ValueError as error:
        raise UnsupportedModel(f"config.json is not JSON: {error}") from None
    return from_config(config)


def from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a parsed ``config.json``. Raises `UnsupportedModel`."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"model_type {family!r} is not one of {', '.join(FAMILIES)}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedModel(f"hidden_act {config['hidden_act']!r} is not silu")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    theta, scaling = _rope(config)
    return Architecture(
        family=family,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        context_length=int(config.get("max_position_embeddings", 2048)),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family == "qwen3",
        windows=_windows(config, family),
    )


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the newer ``rope_parameters`` or the older ``rope_theta`` and ``rope_scaling``."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", float(parameters["factor"]))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(f"rope type {kind!r} is not supported")


def _windows(config: Mapping[str, Any], family: str) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    layers = int(config["num_hidden_layers"])
    window = config.get("sliding_window")
    if not window or family == "llama" or (family.startswith("qwen") and not config.get("use_sliding_window")):
        return (None,) * layers
    if family == "mistral":
        return (int(window),) * layers
    kinds = config.get("layer_types")
    if kinds is None:
        full = int(config.get("max_window_layers", layers))
        kinds = ["full_attention" if layer < full else "sliding_attention" for layer in range(layers)]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
