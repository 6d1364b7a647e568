"""Write a GGUF model as a Hugging Face folder: config.json, model.safetensors (bf16), tokenizer files. Needs torch and gguf."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from phloem_gpu_worker.architecture import Architecture
from phloem_gpu_worker.errors import BadWeights, UnsupportedModel
from phloem_gpu_worker.gguf_weights import GgufSource
from phloem_model import ModelFiles

from .base import PeerFailed

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER_PARTS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"self_attn.{part}_norm" for part in "qk"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    "input_layernorm",
    "post_attention_layernorm",
)


def export(model: ModelFiles, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``model`` (a GGUF) into ``folder``, its weights dequantised to ``dtype``.

    Raises:
        PeerFailed: the model is of a kind that can't be written so.
    """
    try:
        source = GgufSource(model.weights)
        if source.rope_factors() is not None:
            raise PeerFailed("a GGUF with stored rotary divisors can't be written as a Hugging Face folder")
        weights = {_hub_name(name): source.get(name).to(dtype).contiguous() for name in _names(source)}
    except (UnsupportedModel, BadWeights) as error:
        raise PeerFailed(str(error)) from error
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", _config(model, source.architecture, str(dtype).removeprefix("torch.")))
    shutil.copyfile(model.tokenizer_json, folder / "tokenizer.json")
    _write(folder / "tokenizer_config.json", _tokenizer_config(model))


def _names(source: GgufSource) -> Iterator[str]:
    """Canonical names of all weights there are."""
    stems = ["embed_tokens", "norm", "lm_head"]
    stems += [f"layers.{layer}.{part}" for layer in range(source.architecture.layers) for part in _LAYER_PARTS]
    return (name for stem in stems for kind in ("weight", "bias") if source.has(name := f"{stem}.{kind}"))


def _hub_name(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def _config(model: ModelFiles, architecture: Architecture, dtype: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [_CLASSES[architecture.family]],
        "model_type": architecture.family,
        "torch_dtype": dtype,
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate_size,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": architecture.rms_eps,
        "max_position_embeddings": architecture.context_length,
        "rope_theta": architecture.rope_theta,
        "tie_word_embeddings": architecture.tied_embeddings,
        "attention_bias": False,
        "bos_token_id": model.bos,
        "eos_token_id": list(model.eos_ids),
    }
    if architecture.rope_scaling is not None:
        config["rope_scaling"] = {
            "rope_type": architecture.rope_scaling.kind,
            "factor": architecture.rope_scaling.factor,
        }
    return config


def _tokenizer_config(model: ModelFiles) -> dict[str, Any]:
    config = {"bos_token": model.bos_token, "eos_token": model.eos_token, "chat_template": model.chat_template}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{key: value for key, value in config.items() if value is not None},
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
