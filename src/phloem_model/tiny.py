"""A tiny llama with random weights and a byte tokenizer: every service can run end to end on it in milliseconds.

Written with the standard library alone, so that the same seed gives the same bytes everywhere. A token id below 256 is
the byte of that value; ids from 256 on are the special tokens.
"""

import array
import json
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem_model.byte_level import byte_alphabet
from phloem_model.cache import cache_root, new_folder

Json = dict[str, Any]

TINY_VERSION = 1  # raise it whenever the files change, so that older ones in the cache are not used
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
END_OF_TEXT, IM_START, IM_END, PAD = range(256, 256 + len(SPECIAL_TOKENS))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of the random llama. `hidden` is a multiple of `heads`, `heads` of `kv_heads`."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 128
    context_length: int = 2048

    @property
    def vocab(self) -> int:
        return 256 + len(SPECIAL_TOKENS)

    @property
    def kv_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads


def tiny_folder() -> Path:
    """The folder of the model "tiny" in the cache, written on first use."""
    folder = cache_root() / "models" / f"tiny-{TINY_VERSION}"
    if not folder.is_dir():
        with new_folder(folder) as temporary:
            write_tiny(temporary)
    return folder


def write_tiny(folder: Path, seed: int = 0, shape: TinyShape | None = None) -> None:
    """Write config.json, model.safetensors (float32), tokenizer.json and their companions into an existing folder."""
    shape = shape or TinyShape()
    files: dict[str, Json] = {
        "config.json": _config(shape),
        "generation_config.json": {"bos_token_id": END_OF_TEXT, "eos_token_id": [IM_END, END_OF_TEXT]},
        "tokenizer.json": byte_tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[0],
            "eos_token": SPECIAL_TOKENS[2],
            "pad_token": SPECIAL_TOKENS[3],
            "model_max_length": shape.context_length,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(_weights(shape, seed)))


def byte_tokenizer() -> Json:
    """A tokenizer.json without merges: one token for each byte, plus the special tokens."""
    vocab = {character: byte for byte, character in enumerate(byte_alphabet())}
    added = [
        {
            "id": 256 + offset,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for offset, text in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab | {text: 256 + offset for offset, text in enumerate(SPECIAL_TOKENS)},
            "merges": [],
        },
    }


def _config(shape: TinyShape) -> Json:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": PAD,
        "torch_dtype": "float32",
    }


def _weights(shape: TinyShape, seed: int) -> dict[str, tuple[list[int], "array.array[float]"]]:
    """Name -> (shape, row-major float32 values). Matrices are uniform with variance 1 / inputs; norms are ones."""
    rng = random.Random(seed)
    hidden, wide = shape.hidden, shape.feed_forward

    def matrix(rows: int, columns: int, gain: float = 1.0) -> tuple[list[int], "array.array[float]"]:
        bound = gain * math.sqrt(3.0 / columns)
        return [rows, columns], array.array("f", (bound * (2.0 * rng.random() - 1.0) for _ in range(rows * columns)))

    def ones() -> tuple[list[int], "array.array[float]"]:
        return [hidden], array.array("f", [1.0] * hidden)

    # Gains above 1 spread the logits, so that a greedy choice is seldom a near tie.
    weights = {"model.embed_tokens.weight": matrix(shape.vocab, hidden, gain=8.0)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = ones()
        weights[prefix + "self_attn.q_proj.weight"] = matrix(hidden, hidden, gain=2.0)
        weights[prefix + "self_attn.k_proj.weight"] = matrix(shape.kv_width, hidden, gain=2.0)
        weights[prefix + "self_attn.v_proj.weight"] = matrix(shape.kv_width, hidden)
        weights[prefix + "self_attn.o_proj.weight"] = matrix(hidden, hidden)
        weights[prefix + "post_attention_layernorm.weight"] = ones()
        weights[prefix + "mlp.gate_proj.weight"] = matrix(wide, hidden)
        weights[prefix + "mlp.up_proj.weight"] = matrix(wide, hidden)
        weights[prefix + "mlp.down_proj.weight"] = matrix(hidden, wide)
    weights["model.norm.weight"] = ones()
    weights["lm_head.weight"] = matrix(shape.vocab, hidden, gain=2.0)
    return weights


def _safetensors(weights: dict[str, tuple[list[int], "array.array[float]"]]) -> bytes:
    """The safetensors format: length of the header (8 bytes), header in JSON, then the tensors' bytes."""
    header: Json = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    end = 0
    for name, (shape, values) in weights.items():
        if sys.byteorder == "big":
            values.byteswap()
        part = values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + len(part)]}
        end += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
