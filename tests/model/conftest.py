"""Fixtures: an empty cache for each test, GGUF files written by the `gguf` package, the real model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from phloem_model import ModelFiles, resolve
from phloem_model.byte_level import byte_alphabet

WriteGguf = Callable[..., Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("PHLOEM_CACHE", str(root))
    return root


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Write a GGUF with a small byte-level tokenizer (bytes, a few merges, specials); keywords replace metadata."""

    def write(name: str = "model.gguf", **changes: Any) -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, "llama")
        for key, value in _metadata(changes).items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)
            else:
                writer.add_string(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def _metadata(changes: dict[str, Any]) -> dict[str, Any]:
    tokens = [*byte_alphabet(), "he", "ll", "hell", "hello", "12", "<|im_end|>", "<|endoftext|>", "<tool>"]
    metadata: dict[str, Any] = {
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 261 + [1, 3, 4],
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "1 2"],
        "tokenizer.ggml.eos_token_id": 262,
        "tokenizer.chat_template": "{{ messages }}",
    }
    for key, value in changes.items():
        full = (
            key
            if key.startswith("llama")
            else f"tokenizer.{key}"
            if key == "chat_template"
            else f"tokenizer.ggml.{key}"
        )
        metadata[full] = value
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The real default model, fetched into the real cache if it is not there."""
    return resolve("smollm2")
