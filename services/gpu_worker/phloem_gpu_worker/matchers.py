"""Grammar matchers: one small interface, llguidance and xgrammar behind it, both built from tokenizer.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from phloem_proto.messages import Grammar

from .errors import GrammarError

Bits = NDArray[np.int32]
"""[ceil(vocab / 32)]: bit i of word w stands for token 32 w + i."""


class Matcher(Protocol):
    """Where one sequence is in its grammar. Used by one thread at a time."""

    @property
    def ended(self) -> bool:
        """Nothing more can be drawn: the grammar is complete and can't go on, or its end was drawn."""
        ...

    def fill(self, bits: Bits) -> None:
        """Set the bits of the tokens that may come next and clear the others. May take long. Raises `GrammarError`."""
        ...

    def accept(self, ids: list[int]) -> None:
        """Advance over drawn tokens. Raises `GrammarError` if one is not allowed."""
        ...


class GrammarEngine(Protocol):
    """Builds matchers; shared by all sequences."""

    def matcher(self, grammar: Grammar) -> Matcher:
        """A fresh matcher. May take long; releases the interpreter lock meanwhile. Raises `GrammarError`."""
        ...


class LlguidanceEngine:
    """llguidance over a tokenizer.json (about 0.3 s and 60 MB for 49,000 tokens)."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        from llguidance import LLParserLimits, LLTokenizer

        text = tokenizer_json.read_text(encoding="utf-8")
        self._tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_ids))
        self._limits = LLParserLimits(verbose_errors=False)

    def matcher(self, grammar: Grammar) -> Matcher:
        """``grammar.source`` is llguidance's own serialised grammar."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar.source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(f"llguidance does not take the grammar: {matcher.get_error()}")
        return _LlguidanceMatcher(matcher)


class _LlguidanceMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_stopped())

    def fill(self, bits: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            raise GrammarError(f"llguidance gave up: {self._matcher.get_error()}")

    def accept(self, ids: list[int]) -> None:
        if not self._matcher.consume_tokens(ids):
            raise GrammarError(f"llguidance refuses a drawn token: {self._matcher.get_error()}")


class XgrammarEngine:
    """xgrammar over a tokenizer.json. Importing it brings several hundred MB, so it is built when first needed."""

    _CACHE_BYTES = 256 << 20
    """Compiled grammars kept: 176 KB at the median, but 7 MB for one in ten."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        import xgrammar

        text = tokenizer_json.read_text(encoding="utf-8")
        pieces = [""] * vocab_size
        for piece, index in Tokenizer.from_str(text).get_vocab(with_added_tokens=True).items():
            pieces[index] = piece
        info = xgrammar.TokenizerInfo(
            pieces, vocab_type=_vocabulary_type(text), vocab_size=vocab_size, stop_token_ids=list(eos_ids)
        )
        # One thread: a compile must not take all cores from the model.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=self._CACHE_BYTES)
        self._matcher_of = xgrammar.GrammarMatcher

    def matcher(self, grammar: Grammar) -> Matcher:
        """``grammar.source`` is a JSON schema, a pattern or an EBNF text, by ``grammar.kind``."""
        try:
            return _XgrammarMatcher(self._matcher_of(self._compile(grammar)))
        except (RuntimeError, ValueError) as error:
            raise GrammarError(f"xgrammar does not take the grammar: {error}") from None

    def _compile(self, grammar: Grammar) -> Any:
        match grammar.kind:
            case "json_schema" | "json_object":
                # Compact JSON and the standard's meaning of an absent additionalProperties: what the grammar service judged.
                return self._compiler.compile_json_schema(
                    grammar.source or "{}", any_whitespace=False, indent=None, separators=(",", ":"), strict_mode=False
                )
            case "regex":
                return self._compiler.compile_regex(grammar.source)
            case "ebnf":
                return self._compiler.compile_grammar(grammar.source)
            case kind:
                raise GrammarError(f"xgrammar is not asked for {kind}")


class _XgrammarMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_terminated())

    def fill(self, bits: Bits) -> None:
        try:
            # False means "everything is allowed", and then the bits may be left as they were.
            if not self._matcher.fill_next_token_bitmask(bits[None, :]):
                bits.fill(-1)
        except RuntimeError as error:
            raise GrammarError(f"xgrammar gave up: {error}") from None

    def accept(self, ids: list[int]) -> None:
        if not all(self._matcher.accept_token(token) for token in ids):
            raise GrammarError("xgrammar refuses a drawn token")


def _vocabulary_type(tokenizer_text: str) -> Any:
    """How tokenizer.json spells bytes in its pieces, told by its decoder."""
    import xgrammar

    decoder = json.dumps(json.loads(tokenizer_text).get("decoder"))
    if '"ByteLevel"' in decoder:
        return xgrammar.VocabType.BYTE_LEVEL
    return xgrammar.VocabType.BYTE_FALLBACK if '"ByteFallback"' in decoder else xgrammar.VocabType.RAW


class Engines:
    """The engines by name, each built when first asked for. Called from the threads that build matchers."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._arguments = (tokenizer_json, vocab_size, eos_ids)
        self._built: dict[str, GrammarEngine] = {}

    def matcher(self, grammar: Grammar) -> Matcher:
        """See `GrammarEngine.matcher`."""
        if grammar.engine not in self._built:
            self._built[grammar.engine] = self._build(grammar.engine)
        return self._built[grammar.engine].matcher(grammar)

    def _build(self, name: str) -> GrammarEngine:
        try:
            match name:
                case "llguidance":
                    return LlguidanceEngine(*self._arguments)
                case "xgrammar":
                    return XgrammarEngine(*self._arguments)
        except (ImportError, OSError, ValueError) as error:
            raise GrammarError(f"grammar engine {name} does not start: {error}") from None
        raise GrammarError(f"there is no grammar engine {name!r}")
