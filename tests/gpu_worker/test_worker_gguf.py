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
from phloem_gpu_worker.gguf_weights import LAYER_NAMES, GgufSource
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
@pytest.mark.long  # tests/integration/test_equal_tokens.py says the same of tokens in every run
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


def write_gguf(
    path: Path,
    folder: Path,
    more: dict[str, tuple[Any, Any]] | None = None,
    kind_of: Callable[[str], str] = lambda stored: "F32",
    leave_out: tuple[str, ...] = (),
    words: list[str] | None = None,
) -> None:
    """A GGUF with the weights of a saved tiny model, as a converter writes them, and ``more``: bytes and their type by name.

    ``kind_of`` says which type a matrix is stored in, by the name it has in the file; ``leave_out`` names weights that are not.
    ``words`` are the tokens of a byte-level tokenizer, in which "h" and "e" make "he".
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

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
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    if words is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(words)
        writer.add_token_types([1] * len(words))
        writer.add_token_merges(["h e"])
        writer.add_eos_token_id(len(words) - 1)
    source = SafetensorsSource(folder)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    inner = {
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    }  # fmt: skip
    for name in source.names():
        if name in leave_out:
            continue
        parts = name.split(".")
        layered = parts[0] == "layers"
        stored = f"blk.{parts[1]}.{inner[parts[-2]]}" if layered else names[parts[0]]
        weight = converted(name, source.get(name).numpy(), config)
        kind = GGMLQuantizationType[kind_of(f"{stored}.{parts[-1]}")] if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(f"{stored}.{parts[-1]}", quantize(weight, kind), raw_dtype=kind)
    for stored, (raw, kind) in (more or {}).items():
        writer.add_tensor(stored, raw, raw_dtype=kind)
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


def test_the_default_models_weights_are_those_of_the_gguf_package() -> None:
    """Bit for bit, and the architecture from metadata that we read ourselves."""
    from gguf import GGUFReader, dequantize

    path = default_gguf()
    source = GgufSource(path)
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    layer = {f"blk.7.{stored}.weight": f"layers.7.{name}.weight" for name, stored in LAYER_NAMES.items()}
    for stored, name in {
        "token_embd.weight": "embed_tokens.weight",
        "output_norm.weight": "norm.weight",
        **layer,
    }.items():
        assert source.has(name) == (stored in tensors)
        if stored not in tensors or stored.split(".")[-2] in (
            "attn_q",
            "attn_k",
        ):  # their rows are put in another order
            continue
        expected = np.array(dequantize(tensors[stored].data, tensors[stored].tensor_type), dtype=np.float32)
        assert np.array_equal(source.get(name).numpy().view(np.uint32), expected.view(np.uint32)), name


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_every_kind_of_weight_is_dequantised_as_by_the_gguf_package(
    model_folder: Folder, tmp_path: Path, kind: str
) -> None:
    """A tensor of more blocks than are taken at once, and one of a part of that."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize

    path, stored = tmp_path / "tiny.gguf", GGMLQuantizationType[kind]
    block, size = GGML_QUANT_SIZES[stored]
    draw = np.random.default_rng(3)
    # Of floats only finite ones, 14 bits of which are drawn.
    raw = [
        draw.integers(0, 0x3C if stored.name.endswith("F32") else 64, (rows, 768 // block * size), np.uint8)
        for rows in (173, 3)
    ]
    write_gguf(path, model_folder("llama"), {"big": (raw[0], stored), "small": (raw[1], stored)})
    source = GgufSource(path)
    for tensor in GGUFReader(path).tensors:
        expected = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            continue
        got = source._dequantised(tensor.name).numpy()
        assert got.shape == expected.shape
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [99, 24])
def test_a_weight_of_an_unknown_type_or_cut_short_is_named(model_folder: Folder, tmp_path: Path, kind: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model_folder("llama"))
    whole = path.read_bytes()
    at = whole.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(whole[:at] + kind.to_bytes(4, "little") + whole[at + 4 :])
    with pytest.raises(UnsupportedModel, match=rf"output_norm\.weight .*{kind}"):
        load_decoder(path, torch.float32, CPU)
    path.write_bytes(whole[:-64])
    with pytest.raises(BadWeights, match="is cut short"):
        load_decoder(path, torch.float32, CPU)


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
