"""A GGUF file becomes ModelFiles, or an error that names it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from phloem_model import ModelBroken, TokenizerUnsupported, resolve
from phloem_model.gguf_header import read_header, read_metadata

WriteGguf = Callable[..., Path]


def test_metadata_reads_what_the_gguf_package_wrote(write_gguf: WriteGguf) -> None:
    metadata = read_metadata(write_gguf(add_bos_token=True, scores=[0.5, -1.0]))
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 512
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["tokenizer.ggml.scores"] == [0.5, -1.0]
    assert metadata["tokenizer.ggml.merges"] == ["h e", "l l", "he ll", "hell o", "1 2"]


def test_facts_come_from_the_metadata(cache: Path, write_gguf: WriteGguf) -> None:
    files = resolve(str(write_gguf(bos_token_id=262)))
    assert files.name == "model"
    assert files.context_length == 512
    assert files.chat_template == "{{ messages }}"
    assert (files.bos, files.bos_token) == (262, "<|endoftext|>")
    assert files.vocab_size == 264
    assert files.tokenizer_json.is_relative_to(cache)


def test_every_end_token_is_found_the_named_one_first(cache: Path, write_gguf: WriteGguf) -> None:
    """<|im_end|> is of ordinary type in this file, and is still one."""
    files = resolve(str(write_gguf()))
    assert files.eos_ids == (262, 261)
    assert files.eos_token == "<|endoftext|>"


def test_conversion_is_done_once_and_again_when_the_file_changes(cache: Path, write_gguf: WriteGguf) -> None:
    first = resolve(str(write_gguf()))
    written = first.tokenizer_json.stat().st_mtime_ns
    again = resolve(str(first.weights))
    assert again == first
    assert again.tokenizer_json.stat().st_mtime_ns == written
    changed = resolve(str(write_gguf(chat_template="other")))
    assert changed.chat_template == "other"
    assert changed.model_digest != first.model_digest


def test_a_damaged_cache_entry_is_made_again(cache: Path, write_gguf: WriteGguf) -> None:
    files = resolve(str(write_gguf()))
    (files.tokenizer_json.parent / "facts.json").write_text("{")
    assert resolve(str(files.weights)) == files
    files.tokenizer_json.unlink()
    assert resolve(str(files.weights)) == files


@pytest.mark.parametrize("keep", [0, 3, 10, 100, 2000])
def test_a_file_cut_short_is_named(cache: Path, write_gguf: WriteGguf, keep: int) -> None:
    path = write_gguf()
    os.truncate(path, keep)
    with pytest.raises(ModelBroken, match=r"model\.gguf: ") as caught:
        resolve(str(path))
    assert "\n" not in str(caught.value)


def test_wrong_magic_version_and_length_claims_are_refused(tmp_path: Path, cache: Path) -> None:
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    key = (1).to_bytes(8, "little") + b"k"
    huge = (2**62).to_bytes(8, "little")
    cases = {
        "magic": b"GGML" + header[4:],
        "version": header[:4] + (9).to_bytes(4, "little") + header[8:],
        "keys": header[:16] + huge,
        "string": header + huge,
        "array": header + key + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + huge,
        "numbers": header + key + (9).to_bytes(4, "little") + (6).to_bytes(4, "little") + huge,
        "type": header + key + (77).to_bytes(4, "little"),
    }
    for name, data in cases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelBroken):
            read_metadata(path)


def test_wrong_claims_about_tensors_are_refused(tmp_path: Path) -> None:
    def header(count: int) -> bytes:
        return b"GGUF" + (3).to_bytes(4, "little") + count.to_bytes(8, "little") + bytes(8)

    name = (1).to_bytes(8, "little") + b"t"
    tensor = name + (1).to_bytes(4, "little") + (5).to_bytes(8, "little") + bytes(4) + (64).to_bytes(8, "little")
    cases = {
        "claims": header(2**62),
        "cut short": header(2) + tensor,
        "two tensors 't'": header(2) + 2 * tensor,
        "dimensions": header(1) + name + (2**31).to_bytes(4, "little"),
    }
    for problem, data in cases.items():
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelBroken, match=problem):
            read_header(path)
    path.write_bytes(header(1) + tensor)
    found = read_header(path)[1]["t"]
    assert (found.shape, found.kind, found.offset) == ((5,), 0, 64 + 64)  # tensors begin at the next multiple of 32


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, "of kind 'bert'"),
        ({"pre": "unheard-of"}, "pre-tokenizer 'unheard-of' is not known"),
        ({"tokens": None}, "has no tokenizer"),
        ({"token_type": [1, 2]}, "264 tokens and 2 token types"),
        ({"merges": ["h e", "x"]}, "merge 'x'"),
        ({"merges": None}, "has no merges"),
        ({"add_bos_token": True}, "which token"),
        ({"model": "llama"}, "no score"),
        ({"model": "llama", "scores": [-1000.0] * 264}, "share a score"),
    ],
)
def test_a_tokenizer_that_would_be_guesswork_is_refused(
    cache: Path, write_gguf: WriteGguf, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(TokenizerUnsupported, match=problem):
        resolve(str(write_gguf(**changes)))


def test_end_token_outside_the_vocabulary_is_refused(cache: Path, write_gguf: WriteGguf) -> None:
    with pytest.raises(ModelBroken, match="names token 4000"):
        resolve(str(write_gguf(eos_token_id=4000)))


def test_missing_context_length_is_refused(cache: Path, write_gguf: WriteGguf) -> None:
    with pytest.raises(ModelBroken, match="context length"):
        resolve(str(write_gguf(**{"llama.context_length": None})))
