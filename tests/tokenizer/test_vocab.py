"""The bytes of tokens, and whole texts: equal to what the tokenizers library decodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from phloem_model import ModelFiles, TokenizerUnsupported
from phloem_tokenizer.vocab import Vocabulary, load_vocabulary, vocabulary

SPM = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁▁", "é", "▁語"]


def sentencepiece(decoder: dict[str, Any]) -> dict[str, Any]:
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<unk>"} | special, {"id": 1, "content": "<s>"} | special],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": {text: index for index, text in enumerate(SPM)}, "merges": []},
    }


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK: list[dict[str, Any]] = [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


@pytest.mark.integration
@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 49151)), skip=st.booleans())
def test_texts_equal_the_library_for_any_ids_of_the_real_model(smollm2: ModelFiles, ids: list[int], skip: bool) -> None:
    tokenizer, table = _real(smollm2.tokenizer_json)
    assert table.text(ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


_loaded: dict[Path, tuple[Tokenizer, Vocabulary]] = {}


def _real(path: Path) -> tuple[Tokenizer, Vocabulary]:
    if path not in _loaded:
        _loaded[path] = Tokenizer.from_file(str(path)), load_vocabulary(path)
    return _loaded[path]


@settings(deadline=None)
@given(data=st.lists(st.integers(0, 255)))
def test_texts_equal_the_library_for_any_bytes(tiny: ModelFiles, byte_vocabulary: Vocabulary, data: list[int]) -> None:
    tokenizer, _ = _real(tiny.tokenizer_json)
    assert byte_vocabulary.text(data, True) == tokenizer.decode(data) == bytes(data).decode("utf-8", "replace")


@pytest.mark.parametrize("decoder", [{"type": "Sequence", "decoders": [*FALLBACK, STRIP]}, METASPACE])
@pytest.mark.parametrize("skip", [True, False])
def test_sentencepiece_texts_equal_the_library(decoder: dict[str, Any], skip: bool) -> None:
    content = sentencepiece(decoder)
    tokenizer, table = Tokenizer.from_str(json.dumps(content)), vocabulary(content)
    for words in (["▁a", "b", "▁a"], ["▁", "▁a"], ["é", "▁語"], ["<s>", "▁a"], []):
        ids = [SPM.index(word) for word in words]
        assert table.text(ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("decoder", [{"type": "Sequence", "decoders": [*FALLBACK, STRIP]}, METASPACE])
def test_only_the_space_that_encoding_adds_is_stripped(decoder: dict[str, Any]) -> None:
    """The library's Metaspace decoder would lose the text's own space as well."""
    assert vocabulary(sentencepiece(decoder)).text([SPM.index("▁▁"), SPM.index("b")], True) == " b"


def test_byte_fallback_tokens_are_bytes() -> None:
    table = vocabulary(sentencepiece({"type": "Sequence", "decoders": FALLBACK}))
    ids = [2 + byte for byte in "🙂".encode()]
    assert [table.piece(token) for token in ids] == [bytes([byte]) for byte in "🙂".encode()]
    assert table.text(ids, True) == "🙂"
    assert table.text([SPM.index("▁a")], True) == " a"  # nothing is stripped without Strip


def test_without_byte_fallback_such_a_token_is_text() -> None:
    assert vocabulary(sentencepiece(METASPACE)).piece(2) == b"<0x00>"


def test_ids_without_a_token_have_no_bytes(byte_vocabulary: Vocabulary) -> None:
    assert len(byte_vocabulary) == 260
    assert [byte_vocabulary.piece(token) for token in (65, 258, 260, 2**31, -1)] == [b"A", b"<|im_end|>", b"", b"", b""]
    assert byte_vocabulary.special == {256, 257, 258, 259}


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_unknown_decoders_are_refused(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(TokenizerUnsupported, match="decoder"):
        vocabulary(sentencepiece(METASPACE) | {"decoder": decoder})
