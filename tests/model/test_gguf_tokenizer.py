"""A converted tokenizer gives the ids of the original: checked against a plain restatement of its rules."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from phloem_model import ModelFiles, resolve
from phloem_model.byte_level import byte_alphabet
from phloem_model.gguf_header import read_metadata
from phloem_model.gguf_tokenizer import convert

WriteGguf = Callable[..., Path]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), st.sampled_from("09 \n\t'st"))
)


def merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encoding as in its definition: join the pair of least rank, the leftmost first, until none is left."""
    while len(pieces) > 1:
        best = min(range(len(pieces) - 1), key=lambda i: ranks.get((pieces[i], pieces[i + 1]), 1 << 30))
        if (pieces[best], pieces[best + 1]) not in ranks:
            break
        pieces = [*pieces[:best], pieces[best] + pieces[best + 1], *pieces[best + 2 :]]
    return pieces


class ByteLevelReference:
    """Cut by the patterns one after the other, then merge each word's bytes; bytes without a token are left out."""

    def __init__(self, metadata: dict[str, Any], patterns: list[str]) -> None:
        self.vocab = {text: index for index, text in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(metadata["tokenizer.ggml.merges"])}
        self.patterns = [regex.compile(f"({pattern})") for pattern in patterns]
        self.alphabet = byte_alphabet()

    def encode(self, text: str) -> list[int]:
        words = [text]
        for pattern in self.patterns:
            words = [piece for word in words for piece in pattern.split(word) if piece]
        marked = [[self.alphabet[byte] for byte in word.encode()] for word in words]
        joined = [piece for word in marked for piece in merged(word, self.ranks)]
        return [self.vocab[piece] for piece in joined if piece in self.vocab]


def load(files: ModelFiles) -> Tokenizer:
    return Tokenizer.from_file(str(files.tokenizer_json))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return load(smollm2)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: ModelFiles) -> ByteLevelReference:
    return ByteLevelReference(read_metadata(smollm2.weights), [r"\p{N}", GPT2])


@pytest.mark.integration
class TestSmolLM2:
    def test_digits_are_split_one_by_one(self, smollm2_tokenizer: Tokenizer) -> None:
        assert smollm2_tokenizer.encode("2024").tokens == ["2", "0", "2", "4"]
        assert smollm2_tokenizer.encode("in 1999, x12").tokens == ["in", "Ġ", "1", "9", "9", "9", ",", "Ġx", "1", "2"]
        assert smollm2_tokenizer.encode("3.14").ids == [smollm2_tokenizer.token_to_id(c) for c in "3.14"]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Hello, world!",
            "a  b   c    d\t\te\n\n\nf \n g  ",
            "   leading and trailing   ",
            "I'll say we've they're it's DON'T",
            "naïve café – “quotes” … ½ ³ ٣ 十二 Ⅻ",
            "日本語のテキスト 한국어 العربية हिन्दी",
            "🙂👩‍👩‍👧 e\u0301 \u200b \u00a0 \ufeff",
            "def f(x):\n    return x**2 + 10_000\n",
        ],
    )
    def test_ids_equal_the_rules_and_the_text_comes_back(
        self, smollm2_tokenizer: Tokenizer, smollm2_reference: ByteLevelReference, text: str
    ) -> None:
        ids = smollm2_tokenizer.encode(text).ids
        assert ids == smollm2_reference.encode(text)
        assert smollm2_tokenizer.decode(ids) == text

    @settings(deadline=None, max_examples=150)
    @given(text=TEXTS)
    def test_ids_equal_the_rules_for_any_text(
        self, smollm2_tokenizer: Tokenizer, smollm2_reference: ByteLevelReference, text: str
    ) -> None:
        assert smollm2_tokenizer.encode(text).ids == smollm2_reference.encode(text)

    def test_bytes_without_a_token_are_left_out(self, smollm2_tokenizer: Tokenizer) -> None:
        """The vocabulary has no token for a few control bytes; the model never saw them."""
        assert smollm2_tokenizer.encode("a\x06b").tokens == ["a", "b"]

    def test_special_tokens_are_found_in_text_and_hidden_on_decoding(
        self, smollm2_tokenizer: Tokenizer, smollm2: ModelFiles
    ) -> None:
        ids = smollm2_tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids
        assert (ids[0], ids[-1]) == (1, 2)
        assert smollm2_tokenizer.decode(ids) == "user\nhi"
        assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>"
        assert smollm2.eos_ids == (2, 0)
        assert smollm2_tokenizer.encode("hi").ids == smollm2_tokenizer.encode("hi", add_special_tokens=False).ids

    def test_facts(self, smollm2: ModelFiles, smollm2_tokenizer: Tokenizer) -> None:
        assert smollm2.context_length == 8192
        assert smollm2.vocab_size == smollm2_tokenizer.get_vocab_size() == 49152
        assert smollm2.chat_template is not None
        assert "<|im_start|>" in smollm2.chat_template


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "hello12", ["hello", "1", "2"]),
        ("gpt-2", "hello12", ["hello", "12"]),
        ("default", "a+hello12", ["a", "+", "hello", "12"]),
        ("qwen2", "hello12", ["hello", "1", "2"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),  # composed first
        ("smollm", "e\u0301", ["e", "Ì", "ģ"]),
    ],
)
def test_each_pre_tokenizer_cuts_as_it_should(
    cache: Path, write_gguf: WriteGguf, pre: str, text: str, expected: list[str]
) -> None:
    assert load(resolve(str(write_gguf(pre=pre)))).encode(text).tokens == expected


@settings(deadline=None, max_examples=60)
@given(text=TEXTS)
@pytest.mark.parametrize(
    ("pre", "patterns"),
    [
        ("gpt-2", [GPT2]),
        ("default", [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        (
            "qwen2",
            [
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ],
        ),
    ],
)
def test_cuts_equal_the_rules_for_any_text(pre: str, patterns: list[str], text: str) -> None:
    """Every byte pair of the alphabet's letters merges, so that ids show where words were cut."""
    alphabet = byte_alphabet()
    letters = [alphabet[byte] for byte in b"abc019 '\n"]
    pairs = [(left, right) for left in letters for right in letters]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*alphabet, *(left + right for left, right in pairs)],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
    }
    tokenizer = Tokenizer.from_str(json.dumps(convert(metadata)))
    composed = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.encode(text).ids == ByteLevelReference(metadata, patterns).encode(composed)


def test_llama_bpe_adds_bos_and_takes_whole_words_without_merges(cache: Path, write_gguf: WriteGguf) -> None:
    path = write_gguf(pre="llama-bpe", bos_token_id=262, merges=["h e"])
    tokenizer = load(resolve(str(path)))
    assert tokenizer.encode("hello").tokens == ["<|endoftext|>", "hello"]
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["hello"]


def test_eos_is_added_where_the_file_says_so(cache: Path, write_gguf: WriteGguf) -> None:
    tokenizer = load(resolve(str(write_gguf(add_eos_token=True))))
    assert tokenizer.encode("he").tokens == ["he", "<|endoftext|>"]


def test_user_defined_tokens_are_found_and_stay_visible(cache: Path, write_gguf: WriteGguf) -> None:
    tokenizer = load(resolve(str(write_gguf())))
    ids = tokenizer.encode("he<tool>12<|im_end|>").ids
    assert ids == [256, 263, ord("1"), ord("2"), 261]
    assert tokenizer.decode(ids) == "he<tool>12"


class SentencePieceReference:
    """Join the neighbours whose union is the best-scored token, the leftmost first; what is left over goes to bytes."""

    def __init__(self, tokens: list[str], scores: list[float]) -> None:
        self.scores = dict(zip(tokens, scores, strict=True))
        self.ids = {text: index for index, text in enumerate(tokens)}

    def encode(self, text: str) -> list[int]:
        pieces = list("▁" + text.replace(" ", "▁"))
        while True:
            joined = [(self.scores.get(a + b, -1e30), -at) for at, (a, b) in enumerate(pairwise(pieces))]
            if not joined or max(joined)[0] == -1e30:
                break
            at = -max(joined)[1]
            pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
        found: list[int] = []
        for piece in pieces:
            known = [self.ids[piece]] if piece in self.ids else [self.ids[f"<0x{b:02X}>"] for b in piece.encode()]
            found.extend(known)
        return found


SPM_WORDS = ["▁", "a", "b", "c", "▁a", "ab", "bc", "▁ab", "abc", "▁abc", "ca", "cab", "▁c", "▁▁", "aa", "aaa"]


def spm_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_WORDS]
    types = [2, 3, 3] + [6] * 256 + [1] * len(SPM_WORDS)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(SPM_WORDS))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | changes


@settings(deadline=None)
@given(text=st.text(st.sampled_from("abc é語"), min_size=1))
def test_sentencepiece_ids_equal_the_rules_for_any_text(text: str) -> None:
    metadata = spm_metadata()
    tokenizer = Tokenizer.from_str(json.dumps(convert(metadata)))
    reference = SentencePieceReference(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"])
    ids = tokenizer.encode(text).ids
    assert ids == [1, *reference.encode(text)]
    assert tokenizer.decode(ids) == text


def test_sentencepiece_without_a_space_in_front() -> None:
    metadata = spm_metadata(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    tokenizer = Tokenizer.from_str(json.dumps(convert(metadata)))
    assert tokenizer.encode("abc a").tokens == ["abc", "▁a"]
    assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"
