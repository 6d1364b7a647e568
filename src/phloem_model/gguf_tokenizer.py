"""Turn the tokenizer inside a GGUF into a tokenizer.json with the same ids for every text.

Two kinds are converted: "gpt2" (byte-level BPE with merges) and "llama" (SentencePiece BPE with scores and byte
fallback). Anything else, or data that leaves the ids open, is TokenizerUnsupported: a plausible but wrong tokenizer
would only show as worse answers.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from phloem_model.errors import TokenizerUnsupported, shown
from phloem_model.pretokenizers import BOS_BY_DEFAULT, IGNORE_MERGES, NFC, pre_tokenizer

Json = dict[str, Any]
Metadata = dict[str, Any]

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this

# Texts of tokens that end a turn or a generation. Files mark some of them as ordinary text by mistake.
END_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
)


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def convert(metadata: Metadata) -> Json:
    """The tokenizer.json object for a GGUF's metadata. Raises TokenizerUnsupported, naming what is in the way."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens, types = _tokens(metadata)
    if kind == "gpt2":
        return _byte_level_bpe(metadata, tokens, types)
    if kind == "llama":
        return _sentencepiece_bpe(metadata, tokens, types)
    raise TokenizerUnsupported(f"the GGUF's tokenizer is of kind {shown(kind)}; gpt2 and llama can be converted")


def token_texts(metadata: Metadata) -> list[str]:
    """Token texts by id, as tokenizer.json will have them."""
    return _tokens(metadata)[0]


def adds_bos(metadata: Metadata) -> bool:
    """Whether plain text is encoded with a leading BOS."""
    said = metadata.get("tokenizer.ggml.add_bos_token")
    if said is not None:
        return bool(said)
    return metadata.get("tokenizer.ggml.model") == "llama" or _word(metadata, "pre") in BOS_BY_DEFAULT


def _tokens(metadata: Metadata) -> tuple[list[str], list[int]]:
    raw = _list(metadata, "tokens", str)
    if not raw:
        raise TokenizerUnsupported("the GGUF has no tokenizer (tokenizer.ggml.tokens is missing)")
    tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(raw)]
    if len(set(tokens)) != len(tokens):
        raise TokenizerUnsupported("the GGUF's tokenizer has the same token twice")
    types = _list(metadata, "token_type", int) or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerUnsupported(f"the GGUF has {len(tokens)} tokens and {len(types)} token types")
    return tokens, [TokenType.CONTROL if text in END_TEXTS else kind for text, kind in zip(tokens, types, strict=True)]


def _list(metadata: Metadata, name: str, kind: type) -> list[Any]:
    """A list of the tokenizer's, every entry of one kind; empty if there is none."""
    value = metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise TokenizerUnsupported(f"the GGUF's tokenizer.ggml.{name} is not a list of {kind.__name__}")
    return value


def _word(metadata: Metadata, name: str) -> str:
    """A name that the tokenizer goes by, "default" if there is none."""
    value = metadata.get(f"tokenizer.ggml.{name}", "default")
    if not isinstance(value, str):
        raise TokenizerUnsupported(f"the GGUF's tokenizer.ggml.{name} is no text")
    return value


def _byte_level_bpe(metadata: Metadata, tokens: list[str], types: list[int]) -> Json:
    pre = _word(metadata, "pre")
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,  # bytes without a token are left out, as in the model's own tokenizer
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre in IGNORE_MERGES,
        "vocab": {text: index for index, text in enumerate(tokens)},
        "merges": _checked_merges(metadata, tokens),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "NFC"} if pre in NFC else None,
        "pre_tokenizer": pre_tokenizer(pre),
        "post_processor": _post_processor(metadata, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def _checked_merges(metadata: Metadata, tokens: list[str]) -> list[list[str]]:
    known = frozenset(tokens)
    merges = []
    for line in _list(metadata, "merges", str):
        pair = line.split(" ")
        if len(pair) != 2 or pair[0] not in known or pair[1] not in known or "".join(pair) not in known:
            raise TokenizerUnsupported(f"the GGUF's merge {shown(line)} does not join two tokens into a third")
        merges.append(pair)
    if not merges:
        raise TokenizerUnsupported("the GGUF's gpt2 tokenizer has no merges")
    return merges


def _sentencepiece_bpe(metadata: Metadata, tokens: list[str], types: list[int]) -> Json:
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    mark_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    prepend = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unmark_spaces = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": _token_at(tokens, unknown),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {text: index for index, text in enumerate(tokens)},
        "merges": _merges_from_scores(metadata, tokens, types),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, mark_spaces]},
        "pre_tokenizer": None,
        "post_processor": _post_processor(metadata, tokens),
        "decoder": {
            "type": "Sequence",
            "decoders": [unmark_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": model,
    }


def _merges_from_scores(metadata: Metadata, tokens: list[str], types: list[int]) -> list[list[str]]:
    """SentencePiece joins the neighbours whose union has the best score; merges state the same as a ranked list.

    Every way to cut a token into two tokens is a merge with that token's rank. Equal scores would leave the order
    open, so they are refused (converters that did not know the scores wrote one number everywhere).
    """
    scores = _list(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise TokenizerUnsupported("the GGUF's llama tokenizer has no score for each token")
    known = {text: index for index, text in enumerate(tokens) if types[index] == TokenType.NORMAL}
    joined = [index for text, index in known.items() if len(text) > 1]
    joined.sort(key=lambda index: -scores[index])
    if len({scores[index] for index in joined}) != len(joined):
        raise TokenizerUnsupported("two tokens of the GGUF's llama tokenizer share a score, so their order is open")
    merges: list[list[str]] = []
    for index in joined:
        text = tokens[index]
        cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
        pairs = [(left, right) for left, right in cuts if left in known and right in known]
        pairs.sort(key=lambda pair: (known[pair[0]], known[pair[1]]))
        merges.extend([left, right] for left, right in pairs)
    return merges


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[Json]:
    """Tokens that are found in the text before anything else; control and unknown ones are also hidden on decoding."""
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    return [
        {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in special,
        }
        for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in special or kind == TokenType.USER_DEFINED
    ]


def _post_processor(metadata: Metadata, tokens: list[str]) -> Json | None:
    """Adds BOS in front and EOS behind where the GGUF says so."""
    front = _special(metadata, tokens, "bos") if adds_bos(metadata) else None
    back = _special(metadata, tokens, "eos") if metadata.get("tokenizer.ggml.add_eos_token") else None
    if front is None and back is None:
        return None

    def around(sequence: str, type_id: int) -> list[Json]:
        body: Json = {"Sequence": {"id": sequence, "type_id": type_id}}
        marks = [None if text is None else {"SpecialToken": {"id": text, "type_id": type_id}} for text in (front, back)]
        return [part for part in (marks[0], body, marks[1]) if part is not None]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]}
            for text in (front, back)
            if text is not None
        },
    }


def _special(metadata: Metadata, tokens: list[str], name: str) -> str:
    index = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if index is None:
        raise TokenizerUnsupported(f"the GGUF wants {name.upper()} added and does not say which token it is")
    return _token_at(tokens, index)


def _token_at(tokens: list[str], index: int) -> str:
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise TokenizerUnsupported(f"the GGUF names token {shown(index)}, and has {len(tokens)} tokens")
    return tokens[index]
