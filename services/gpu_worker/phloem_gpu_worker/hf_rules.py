"""Which models ``transformers`` may compute, as far as their configuration tells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phloem_model.errors import shown

from .architecture import MOST_LAYERS
from .errors import UnsupportedModel
from .fields import Fields
from .hf_config import FAMILIES

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
"""What configurations call the number of their blocks."""
_MOST_EXPERTS = 1 << 16


def other_family(weights: Path) -> str | None:
    """The ``model_type`` of a folder, if it is none of our own decoders'."""
    family = _stated(weights).get("model_type") if weights.is_dir() else None
    return family if isinstance(family, str) and family not in FAMILIES else None


def _stated(folder: Path) -> dict[str, Any]:
    """What config.json says; nothing if it can't be read."""
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) else {}


def refused(family: str, reason: str) -> UnsupportedModel:
    """The error of a model that can't be computed right."""
    return UnsupportedModel(f"model_type {shown(family)} is not supported: {reason}")


def read_hf_config(folder: Path) -> Any:
    """The configuration in ``folder``, as ``transformers`` reads it.

    Raises:
        UnsupportedModel: ``transformers`` is not installed, does not know the model, or it needs what the paged pool has not.
    """
    try:
        from transformers import CONFIG_MAPPING, AutoConfig
    except ImportError:
        raise UnsupportedModel("models of this kind need transformers, which is not installed") from None
    stated = _stated(folder)
    family = str(stated.get("model_type"))
    if family not in CONFIG_MAPPING:
        own = ", and code that a model brings along is never run" if stated.get("auto_map") else ""
        raise refused(family, f"transformers does not know it{own}")
    if stated.get("quantization_config"):
        raise refused(family, "its weights are quantised; only a GGUF's quantised weights are read")
    _check_counts(stated)
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a configuration's own checks raise; all mean that this file is wrong
        raise refused(family, f"config.json can't be read ({first_line(error)})") from error
    reason = _why_not(config)
    if reason is not None:
        raise refused(family, reason)
    return config


def _check_counts(stated: Mapping[str, Any]) -> None:
    """Raises `UnsupportedModel` if there would be no layers, or so many parts that making them takes hours."""
    fields = Fields(stated, "config.json")
    for name in _LAYERS:
        fields.whole(name, 1, most=MOST_LAYERS)
    for name, value in stated.items():
        if "expert" in name and isinstance(value, int) and not isinstance(value, bool):
            fields.whole(name, least=-1, most=_MOST_EXPERTS)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _why_not(config: Any) -> str | None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(config, "is_encoder_decoder", False):
        return "it has an encoder"
    models = [name for name, kind in config.sub_configs.items() if getattr(kind, "model_type", None) != ""]
    if models:
        return f"it is made of several models ({', '.join(models)})"
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "transformers has no causal language model of this kind"
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        return f"it has layers of {', '.join(kinds)}, and only full_attention is computed"
    if getattr(config, "attn_logit_softcapping", None):
        return "its attention scores are capped (attn_logit_softcapping)"
    return None


def drop_idle_window(config: Any) -> None:
    """Forget a sliding window of all layers that is as wide as the context: it hides nothing."""
    window = getattr(config, "sliding_window", None)
    if window is not None and window >= context_length(config) and not getattr(config, "layer_types", None):
        config.sliding_window = None


def context_length(config: Any) -> int:
    """Tokens of a sequence. Where rotary frequencies change with length (longrope), as many as the first of them are for: a cache holds
    keys of one frequency only."""
    most = int(getattr(config, "max_position_embeddings", None) or 2048)
    limits = [
        rope["original_max_position_embeddings"] for rope in _ropes(config) if rope.get("rope_type") == "longrope"
    ]
    return min(most, *limits) if limits else most


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Rotary settings: one, or one for each kind of layer."""
    stated = getattr(config, "rope_parameters", None)
    if isinstance(stated, Mapping):
        yield stated
        yield from (one for one in stated.values() if isinstance(one, Mapping))
