"""Questions to a judged grammar: is a text in its language, and what does a random walk through its masks give?

Matchers are built from a verdict's engine and source alone, as a worker builds them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from phloem_grammar.engine import TokenizerSource


class Language(Protocol):
    """One grammar with a byte tokenizer: token i is the byte i, and 256 and up are special."""

    def contains(self, text: str) -> bool:
        """Whether the whole text can be generated and may end there."""
        ...

    def draw(self, rng: random.Random, most: int) -> bytes | None:
        """A random text of about ``most`` bytes; None when the walk did not come to an end."""
        ...


@dataclass
class Tokenizers:
    """A byte tokenizer for each engine."""

    source: TokenizerSource
    llguidance: LLTokenizer

    @classmethod
    def load(cls, path: Path, eos_ids: tuple[int, ...]) -> Tokenizers:
        text = path.read_text()
        assert Tokenizer.from_str(text).get_vocab_size() < 300, "made for a byte tokenizer"
        return cls(TokenizerSource(str(path), eos_ids, "byte"), LLTokenizer(text, eos_token=list(eos_ids)))

    def language(self, engine: str, source: str) -> Language:
        """From `Grammar.engine` and `Grammar.source`."""
        return Llguidance(self, source) if engine == "llguidance" else Xgrammar(self, source)


class Llguidance:
    def __init__(self, tokenizers: Tokenizers, source: str) -> None:
        self._tokenizer = tokenizers.llguidance
        self._eos = tokenizers.source.eos_ids[0]
        self._start = LLMatcher(self._tokenizer, source, log_level=0, limits=LLParserLimits(verbose_errors=False))
        assert not self._start.is_error(), self._start.get_error()

    def contains(self, text: str) -> bool:
        ids = list(text.encode())
        return bool(self._start.deep_copy().validate_tokens([*ids, self._eos]) == len(ids) + 1)

    def draw(self, rng: random.Random, most: int) -> bytes | None:
        matcher = self._start.deep_copy()
        drawn = bytearray()
        while len(drawn) < 4 * most and not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            legal = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
            if matcher.is_accepting() and (not legal or len(drawn) >= most or rng.random() < 0.1):
                return bytes(drawn)
            if not legal:
                break
            drawn.append(choose(legal, rng, closing=len(drawn) >= most))
            assert matcher.consume_token(drawn[-1]), matcher.get_error()
        return bytes(drawn) if matcher.is_accepting() else None


class Xgrammar:
    def __init__(self, tokenizers: Tokenizers, source: str) -> None:
        import xgrammar

        from phloem_grammar.engine_xgrammar import tokenizer_info

        self._xgrammar: Any = xgrammar
        compiler = xgrammar.GrammarCompiler(tokenizer_info(tokenizers.source), max_threads=1)
        self._compiled = compiler.compile_json_schema(
            source, any_whitespace=False, indent=None, separators=(",", ":"), strict_mode=False
        )

    def contains(self, text: str) -> bool:
        matcher = self._xgrammar.GrammarMatcher(self._compiled, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

    def draw(self, rng: random.Random, most: int) -> bytes | None:
        matcher = self._xgrammar.GrammarMatcher(self._compiled)
        bitmask = self._xgrammar.allocate_token_bitmask(1, self._compiled.tokenizer_info.vocab_size)
        drawn = bytearray()
        while len(drawn) < 4 * most:
            matcher.fill_next_token_bitmask(bitmask)
            mask = bitmask[0].numpy().tobytes()
            legal = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
            if matcher.is_completed() and (not legal or len(drawn) >= most or rng.random() < 0.1):
                return bytes(drawn)
            if not legal:
                break
            drawn.append(choose(legal, rng, closing=len(drawn) >= most))
            assert matcher.accept_token(drawn[-1])
        return None


_CLOSERS = b'"}]'


def choose(legal: list[int], rng: random.Random, *, closing: bool) -> int:
    """A legal byte: mostly of the few that make short, varied JSON; when ``closing``, one that brings the end nearer."""
    if closing:
        closers = [byte for byte in _CLOSERS if byte in legal]
        if closers:
            return closers[0]
    favoured = [byte for byte in b'"{}[],:0123456789abcxyz\\u-eE.@' if byte in legal]
    return rng.choice(favoured if favoured and rng.random() < 0.9 else legal)
