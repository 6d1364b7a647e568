"""Models that ``transformers`` computes with our attention: its logits whatever the pages and chunks, or a refusal that says why."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phloem_bus.errors import ConfigError
from phloem_gpu_worker.attention import AttentionBackend, ReferenceAttention
from phloem_gpu_worker.attention_torch import TorchAttention
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.core import Limits, WorkerCore
from phloem_gpu_worker.errors import BadWeights, UnsupportedModel
from phloem_gpu_worker.hf_load import load_hf
from phloem_gpu_worker.load import PoolSize, make_runner
from phloem_gpu_worker.runner import TorchRunner
from phloem_gpu_worker.startup import load
from phloem_model.tiny import byte_tokenizer

from .batches import batch_of, ids_of, pages_of
from .driver import Driver
from .test_worker_models import reference_logits
from .tiny_models import VOCAB

Folder = Callable[[str], Path]
CPU = torch.device("cpu")
Settings = dict[str, Any]
_COMMON: Settings = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SMALL: Settings = {
    **_COMMON,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_GPT2: Settings = {**_COMMON, "n_positions": 512, "n_embd": 64, "n_layer": 3, "n_head": 4}
_LATENT: Settings = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LONG_ROPE: Settings = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    },
}
SERVED: dict[str, tuple[str, Settings]] = {
    "gpt2": ("GPT2Config", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),  # learned positions, scales of its own
    "gpt_neox": ("GPTNeoXConfig", _SMALL),  # q, k and v in one matrix, heads rotated in part
    "gemma": (
        "GemmaConfig",
        {**_SMALL, "num_key_value_heads": 1, "head_dim": 32},
    ),  # wide heads, all sharing one KV head
    "granite": ("GraniteConfig", {**_SMALL, "attention_multiplier": 0.4, "logits_scaling": 3.0}),
    "nanochat": ("NanoChatConfig", {**_SMALL, "final_logit_softcapping": 2.0}),  # logits that are capped
    "mixtral": ("MixtralConfig", {**_SMALL, "num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3Config", {**_SMALL, **_LATENT}),  # keys that are wider than values
    "opt": (
        "OPTConfig",
        {**_SMALL, "ffn_dim": 80, "word_embed_proj_dim": 64},
    ),  # the body is not where other models have it
    "phi3-wide": ("Phi3Config", {**_SMALL, "sliding_window": 512}),  # a window that hides nothing
    "phi3-long": ("Phi3Config", {**_SMALL, **_LONG_ROPE}),
}
_WHOLE: Settings = {"layer_types": ["full_attention"] * 3}
REFUSED: dict[str, tuple[str, Settings, str]] = {
    "gemma2": ("Gemma2Config", _SMALL, "layers of sliding_attention"),
    "phi3-window": ("Phi3Config", {**_SMALL, "sliding_window": 7}, "needs 'sliding_window'"),
    "gemma2-capped": ("Gemma2Config", {**_SMALL, **_WHOLE}, "attn_logit_softcapping"),
    "gpt_oss": ("GptOssConfig", {**_SMALL, **_WHOLE, "num_local_experts": 4}, "needs 's_aux'"),
    "lfm2": ("Lfm2Config", {**_SMALL, "layer_types": ["full_attention", "conv", "full_attention"]}, "layers of conv"),
    "mamba": ("MambaConfig", {**_COMMON, "hidden_size": 32, "num_hidden_layers": 2}, "linear_attention"),
    "bloom": ("BloomConfig", {**_COMMON, "hidden_size": 64, "n_layer": 2, "n_head": 4}, "attention interface"),
    "bert": ("BertConfig", {**_SMALL, "is_decoder": False}, "what comes later"),
    "roberta": ("RobertaConfig", {**_SMALL, "is_decoder": True}, "positions in a way of its own"),
    "mbart": (
        "MBartConfig",
        {**_COMMON, "d_model": 64, "decoder_ffn_dim": 80, "decoder_layers": 2, "decoder_attention_heads": 4,
         "is_decoder": True, "is_encoder_decoder": False},
        "in parts it computes something else",
    ),
    "doge": ("DogeConfig", _SMALL, "a mask other than the causal one"),
}  # fmt: skip
_ALONE: dict[str, tuple[str, str]] = {
    "T5Config": ("encoder", "'t5'"),
    "Gemma3Config": ("several models", "'gemma3'"),
    "ViTConfig": ("no causal language model", "'vit'"),
}
"""Configurations that are refused before any weights are looked at."""


def save(kind: str, settings: Settings, folder: Path) -> None:
    """A model with seeded random weights, and a tokenizer of bytes."""
    import transformers

    config = getattr(transformers, kind)(**settings)
    torch.manual_seed(7)
    auto: Any = transformers.AutoModelForCausalLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = auto.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.2) if parameter.dim() > 1 else parameter.normal_(0.5, 0.3)
        model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Folder of a saved tiny model by name, made once."""
    root = tmp_path_factory.mktemp("others")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            kind, settings = SERVED[name] if name in SERVED else REFUSED[name][:2]
            save(kind, settings, path)
        return path

    return folder


def runner_of(folder: Path, page_size: int = 16, attention: AttentionBackend | None = None) -> TorchRunner:
    return make_runner(load_hf(folder, torch.float32, CPU), PoolSize(page_size, tokens=512), attention)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention])
def test_logits_equal_transformers(other: Folder, name: str, backend: type[AttentionBackend]) -> None:
    folder, ids = other(name), ids_of(40, 1)
    runner = runner_of(folder, 16, backend())
    logits = runner.forward(batch_of([(ids, 0, pages_of(16, 3, 40))], every=True)).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(folder, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("page_size", [1, 16])
def test_chunks_mixed_with_decoding_give_the_same_logits(other: Folder, name: str, page_size: int) -> None:
    """A prompt in chunks beside another sequence that decodes token by token: both as if alone and whole."""
    folder = other(name)
    long, short = ids_of(37, 2), ids_of(30, 3)
    runner = runner_of(folder, page_size)
    far = 512 // page_size - 40 // page_size - 1
    long_table, short_table = pages_of(page_size, 2, 37), pages_of(page_size, far, 30)
    runner.forward(batch_of([(short[:20], 0, short_table)]))
    got_long, got_short = [], []
    for step, (begin, end) in enumerate([(0, 16), (16, 17), (17, 33), (33, 37)]):
        rows = [(long[begin:end], begin, long_table), ([short[20 + step]], 20 + step, short_table)]
        logits = runner.forward(batch_of(rows)).logits
        got_long.append(logits[0])
        got_short.append(logits[1])
    expected = reference_logits(folder, long)
    torch.testing.assert_close(torch.stack(got_long), expected[[15, 16, 32, 36]], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.stack(got_short), reference_logits(folder, short)[20:24], atol=1e-4, rtol=1e-4)


def test_a_row_reads_what_another_row_of_its_batch_computes(other: Folder) -> None:
    """As siblings behind a prefix do, which one of them computes in the same step."""
    folder, ids = other("gpt_neox"), ids_of(40, 4)
    runner = runner_of(folder)
    rows = [(ids[32:], 32, [7, 3, 5]), (ids[:36], 0, [7, 3, 4])]
    logits = runner.forward(batch_of(rows)).logits
    torch.testing.assert_close(logits, reference_logits(folder, ids)[[39, 35]], atol=1e-4, rtol=1e-4)


def test_a_batch_may_want_no_logits_at_all(other: Folder) -> None:
    batch = batch_of([(ids_of(10, 5), 0, [1])])
    nothing = type(batch)(batch.tokens, batch.positions, batch.starts, batch.counts, batch.tables, batch.logits_at[:0])
    assert runner_of(other("granite")).forward(nothing).logits.shape == (0, VOCAB)


@pytest.mark.parametrize("name", ["gpt2", "gemma", "mixtral", "deepseek_v3"])
def test_bfloat16_is_near_float32(other: Folder, name: str) -> None:
    folder, ids = other(name), ids_of(24, 6)
    runner = make_runner(load_hf(folder, torch.bfloat16, CPU), PoolSize(16, tokens=64))
    logits = runner.forward(batch_of([(ids, 0, [0, 1])], every=True)).logits
    near = torch.nn.functional.cosine_similarity(logits, reference_logits(folder, ids), dim=-1)
    assert near.median() > 0.99


def test_the_context_ends_where_rotary_frequencies_would_change(other: Folder) -> None:
    assert runner_of(other("phi3-long")).capacity.context_length == 64
    assert runner_of(other("phi3-wide")).capacity.context_length == 512


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_computed_right_is_refused_by_name(other: Folder, name: str, dtype: torch.dtype) -> None:
    family, reason = name.split("-")[0], REFUSED[name][2]
    with pytest.raises(UnsupportedModel, match=f"model_type '{family}' is not supported: .*{reason}") as caught:
        load_hf(other(name), dtype, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", _ALONE)
def test_what_is_no_causal_language_model_is_refused_without_weights(tmp_path: Path, kind: str) -> None:
    import transformers

    getattr(transformers, kind)().save_pretrained(tmp_path)
    reason, family = _ALONE[kind]
    with pytest.raises(UnsupportedModel, match=f"{family} is not supported: .*{reason}"):
        load_hf(tmp_path, torch.float32, CPU)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mystery"}, "transformers does not know it"),
        ({"model_type": "mystery", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "code that a model brings along"),
        ({"model_type": "gpt2", "quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"model_type": "gpt2", "n_embd": "wide"}, "n_embd"),
    ],
)
def test_configurations_that_cant_be_used_are_refused(tmp_path: Path, config: Settings, reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load_hf(tmp_path, torch.float32, CPU)
    assert "\n" not in str(caught.value)


def test_where_transformers_is_not_installed_such_models_are_refused(
    other: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = other("gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModel, match="transformers, which is not installed"):
        load_hf(folder, torch.float32, CPU)


def test_weights_that_are_missing_wrong_or_cut_short_are_named(other: Folder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, path = other("gpt_neox"), tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    save_file({other: weight for other, weight in weights.items() if other != name}, path, {"format": "pt"})
    with pytest.raises(BadWeights, match=rf"{name} is missing"):
        load_hf(tmp_path, torch.float32, CPU)
    save_file({**weights, name: weights[name][:5].contiguous()}, path, {"format": "pt"})
    with pytest.raises(BadWeights, match=name):
        load_hf(tmp_path, torch.float32, CPU)
    save_file({**weights, name: weights[name] * float("nan")}, path, {"format": "pt"})
    with pytest.raises(BadWeights, match="not a number"):
        load_hf(tmp_path, torch.float32, CPU)
    path.write_bytes((source / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(BadWeights, match="safetensors"):
        load_hf(tmp_path, torch.float32, CPU)
    path.unlink()
    with pytest.raises(BadWeights, match="safetensors"):
        load_hf(tmp_path, torch.float32, CPU)


def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What ``transformers`` draws."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference_logits(folder, ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", ["gpt2", "gemma", "deepseek_v3"])
def test_a_core_carries_out_plans(other: Folder, name: str) -> None:
    """Prompts in chunks beside rows that decode, one of which comes later."""
    folder = other(name)
    driver = Driver(WorkerCore(runner_of(folder, 4), Limits(slots=8), (), 512, None))
    prompts = [ids_of(19, 7), ids_of(5, 8), ids_of(11, 9)]
    first, second = driver.open(0, prompts[0]), driver.open(3, prompts[1])
    driver.finish(2, chunk=6)
    third = driver.open(1, prompts[2])
    driver.finish(6, chunk=6)
    for sequence, prompt in zip((first, second, third), prompts, strict=True):
        assert sequence.output == greedy(folder, prompt, 6)


def config_of(folder: Path, **settings: Any) -> WorkerConfig:
    return WorkerConfig(model=str(folder), dtype="float32", device="cpu", kv_tokens=512, threads=1, **settings)


def test_a_worker_starts_with_such_a_folder_and_says_who_computes(
    other: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "phloem.worker")
    loaded = load(config_of(other("gpt2")), "m")
    assert loaded.profile.context_length == 512
    assert loaded.profile.vocab_size == VOCAB
    (line,) = [record for record in caplog.records if record.name == "phloem.worker"]
    assert line.levelno == logging.INFO
    assert "torch through transformers (model_type gpt2)" in line.getMessage()
    driver = Driver(loaded.core)
    sequence = driver.open(0, ids_of(9, 3))
    driver.finish(4)
    assert sequence.output == greedy(other("gpt2"), ids_of(9, 3), 4)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [({"kernels": "portable"}, "--kernels"), ({"quantize": "int8", "dtype": "auto"}, "--quantize")],
)
def test_kernels_and_quantised_weights_are_refused_by_their_flag(other: Folder, settings: Settings, flag: str) -> None:
    config = WorkerConfig(model=str(other("gpt2")), device="cpu", kv_tokens=512, threads=1, **settings)
    with pytest.raises(ConfigError, match="model_type 'gpt2', which transformers computes") as caught:
        load(config, "m")
    assert flag in str(caught.value)
