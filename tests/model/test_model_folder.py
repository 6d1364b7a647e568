"""A model folder becomes ModelFiles, wherever the hub's layout keeps each fact; the tiny model is one."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from phloem_model import ModelBroken, ModelNotFound, resolve
from phloem_model.tiny import IM_END, IM_START, TinyShape, write_tiny


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    path = tmp_path / "a model"
    path.mkdir()
    write_tiny(path)
    return path


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_tiny_is_written_once_and_the_same_everywhere(cache: Path, tmp_path: Path) -> None:
    files = resolve("tiny")
    assert files.weights.is_relative_to(cache)
    assert (files.context_length, files.vocab_size, files.eos_ids) == (2048, 260, (IM_END, 256))
    assert resolve("tiny") == files
    other = tmp_path / "other"
    other.mkdir()
    write_tiny(other)
    assert resolve(str(other)).model_digest == files.model_digest
    write_tiny(other, seed=1)
    assert resolve(str(other)).model_digest != files.model_digest


def test_tiny_tokens_are_bytes_and_specials(cache: Path) -> None:
    tokenizer = Tokenizer.from_file(str(resolve("tiny").tokenizer_json))
    text = "h\u00e9 \U0001f642\n"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [IM_START, ord("a"), IM_END]
    assert tokenizer.decode(list(text.encode())) == text


def test_tiny_weights_are_a_llama_that_safetensors_reads(folder: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    shape = TinyShape()
    assert weights["model.embed_tokens.weight"].shape == (260, 64)
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (shape.kv_width, 64)
    assert {str(tensor.dtype) for tensor in weights.values()} == {"float32"}
    assert 0.2 < weights["lm_head.weight"].std() < 0.3  # gain 2 over 64 inputs


@pytest.mark.long
def test_tiny_loads_in_transformers(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()


def test_end_tokens_are_gathered_from_all_files(folder: Path) -> None:
    change(folder / "tokenizer_config.json", eos_token={"content": "<|pad|>", "lstrip": False})
    change(folder / "generation_config.json", eos_token_id=IM_START)
    change(folder / "config.json", eos_token_id=[IM_END, IM_START])
    files = resolve(str(folder))
    assert files.name == "a model"
    assert files.eos_ids == (259, IM_START, IM_END)
    assert files.eos_token == "<|pad|>"


def test_a_folder_without_companions_is_enough(folder: Path) -> None:
    for name in ("tokenizer_config.json", "generation_config.json"):
        (folder / name).unlink()
    files = resolve(str(folder))
    assert (files.chat_template, files.bos, files.bos_token, files.eos_ids) == (None, 256, "<|endoftext|>", (258, 256))


def test_chat_template_is_found_wherever_it_is_kept(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    change(config, chat_template=[{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}])
    assert resolve(str(folder)).chat_template == "D"
    change(config, chat_template=None)
    assert resolve(str(folder)).chat_template is None
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert resolve(str(folder)).chat_template == "J"
    (folder / "chat_template.jinja").write_text("F")
    assert resolve(str(folder)).chat_template == "F"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", None),
        ("config.json", "{}"),
        ("config.json", "not json"),
        ("tokenizer.json", None),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
        ("model.safetensors", None),
    ],
)
def test_what_is_missing_or_wrong_is_named(folder: Path, name: str, content: str | None) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ModelBroken, match="safetensors" if "safetensors" in name else name) as caught:
        resolve(str(folder))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_nothing_says_what_there_is(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'smolm'.*smollm2, tiny"):
        resolve("smolm")


def test_a_file_that_is_no_gguf_is_refused(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelBroken, match=r"weights\.bin: .*not a \.gguf"):
        resolve(str(path))


def test_hub_id_without_the_hub_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match="huggingface_hub is not installed"):
        resolve("owner/name")
