"""GGUF files: the default model against ``transformers`` with the same dequantised weights, and a small qwen2 written here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phloem_model
from phloem_gpu_worker.errors import BadWeights, UnsupportedModel
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.weights import SafetensorsSource

from .batches import batch_of

Folder = Callable[[str], Path]
CPU = torch.device("cpu")


def default_gguf() -> Path:
    """The default model's file; skips where it can't be had."""
    try:
        return phloem_model.resolve(os.environ.get("PHLOEM_TEST_MODEL", "smollm2")).weights
    except phloem_model.ModelError as error:
        pytest.skip(f"the default model is not available: {error}")


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_default_model_continues_like_transformers() -> None:
    """Both read the GGUF by themselves: a converter's row order undone wrongly would give fluent-looking but different text."""
    import transformers

    path = default_gguf()
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.eval()
    runner = make_runner(load_decoder(path, torch.float32, CPU), PoolSize(16, tokens=256))
    for prompt in ([504, 3575, 282, 4649, 314], [1, 4093, 198, 19556, 28, 1732, 359, 346, 47, 2, 198]):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            logits = model(ids).logits[0]
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        got = runner.forward(batch_of([(prompt, 0, [0, 1, 2])], every=True)).logits
        torch.testing.assert_close(got, logits, atol=1e-3, rtol=1e-3)
        tokens = list(prompt)
        row = got[-1]
        for _ in range(len(expected[0]) - len(prompt)):
            tokens.append(int(row.argmax()))
            row = runner.forward(batch_of([([tokens[-1]], len(tokens) - 1, [0, 1, 2])])).logits[0]
        assert tokens == expected[0].tolist()


def converted(name: str, weight: Any, config: dict[str, Any]) -> Any:
    """What a converter makes of a weight: for llama, q and k rows interleaved in pairs (llama.cpp's ``permute``)."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if config["model_type"] != "llama" or heads is None:
        return weight
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, folder: Path) -> None:
    """A GGUF with the weights of a saved tiny model, as a converter writes them."""
    from gguf import GGUFWriter

    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    source = SafetensorsSource(folder)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    inner = {
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    }  # fmt: skip
    for name in source.names():
        parts = name.split(".")
        layered = parts[0] == "layers"
        stored = f"blk.{parts[1]}.{inner[parts[-2]]}" if layered else names[parts[0]]
        writer.add_tensor(f"{stored}.{parts[-1]}", converted(name, source.get(name).numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_gguf_equals_its_safetensors(model_folder: Folder, tmp_path: Path, name: str) -> None:
    folder = model_folder(name)
    write_gguf(tmp_path / "tiny.gguf", folder)
    ids = np.arange(20).tolist()
    logits = []
    for weights in (folder, tmp_path / "tiny.gguf"):
        runner = make_runner(load_decoder(weights, torch.float32, CPU), PoolSize(16, tokens=64))
        logits.append(runner.forward(batch_of([(ids, 0, [1, 0])], every=True)).logits)
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no such thing" * 10)
    with pytest.raises(UnsupportedModel, match="GGUF"):
        load_decoder(tmp_path / "x.gguf", torch.float32, CPU)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        load_decoder(tmp_path, torch.float32, CPU)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UnsupportedModel, match="gpt2"):
        load_decoder(tmp_path, torch.float32, CPU)


def test_a_missing_weight_is_named(model_folder: Folder, tmp_path: Path) -> None:
    config = model_folder("qwen3") / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "model.safetensors").symlink_to(model_folder("llama") / "model.safetensors")
    with pytest.raises(BadWeights, match=r"layers\.0"):
        load_decoder(tmp_path, torch.float32, CPU)
