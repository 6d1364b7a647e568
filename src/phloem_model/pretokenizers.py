"""How byte-level BPE tokenizers cut text into words before merging, by the name a GGUF gives (`tokenizer.ggml.pre`).

Each entry is the JSON that the `tokenizers` library reads. The cuts are the model's own: a wrong one still yields
plausible ids, which is why an unknown name is an error.
"""

from typing import Any

from phloem_model.errors import TokenizerUnsupported, shown

Json = dict[str, Any]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


# Digits one by one, then the cuts of GPT-2 (which only see single digits).
_DIGITS_THEN_GPT2 = _sequence({"type": "Digits", "individual_digits": True}, _byte_level(True))
_LLAMA_BPE = _sequence(_split(_LLAMA3), _byte_level(False))

_BY_NAME: dict[str, Json] = {
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "gpt-2": _byte_level(True),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _sequence(_split(_QWEN2), _byte_level(False)),
    "default": _sequence(
        _split(r"[\p{P}\$\+<=>\^~\|]+"), _split(_GPT2), _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"), _byte_level(False)
    ),
}
# A word that is a token as a whole is taken before any merge.
IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3")
# These models' own tokenizers compose characters before they cut.
NFC = ("qwen2",)
# Where a GGUF does not say whether BOS is added, these models add it.
BOS_BY_DEFAULT = IGNORE_MERGES


def pre_tokenizer(name: str) -> Json:
    """The `pre_tokenizer` entry of tokenizer.json for a GGUF's `tokenizer.ggml.pre`.

    Raises TokenizerUnsupported for a name whose cuts are not known here.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(sorted(_BY_NAME))
        raise TokenizerUnsupported(f"the GGUF's pre-tokenizer {shown(name)} is not known (known: {known})") from None
