"""llguidance: first choice for JSON schema and regex. Refuses what it can't enforce; never asked to be lenient."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from .dialect import Dialect, rewrite
from .engine import Compiled, Rejected, Task, TokenizerSource
from .probe import Times, clear_bits, try_masks
from .words import in_engine_words

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists in the stub only

JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    # Without \u escapes a key has one spelling. With them "\u0061" is taken for another key than "a" and dodges its schema.
    "json_allowed_escapes": '"\\bfnrt',
}
"""Compact JSON, enforced completely. Written into the grammar text, so that whoever builds a matcher from it gets the same language."""

SOLELY_UNSATISFIABLE = "NoExtension"
"""llguidance's word for a matcher that can go nowhere."""


def grammar_text(kind: str, source: str) -> str:
    """llguidance's own serialised grammar for a canonical source.

    Raises:
        ValueError: unknown kind, or a schema that llguidance's parser does not read.
    """
    if kind == "json_schema":
        schema = json.dumps(in_engine_words(json.loads(source)), ensure_ascii=False, separators=(",", ":"))
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(rewrite(source, Dialect.PYTHON)))
    raise ValueError(f"llguidance does not take {kind}")


class Llguidance:
    """The engine with a loaded tokenizer (about 0.3 s and 60 MB for 49,000 tokens)."""

    def __init__(self, tokenizer: TokenizerSource) -> None:
        self.tokenizer = LLTokenizer(tokenizer.read(), eos_token=list(tokenizer.eos_ids))
        self.limits = LLParserLimits(verbose_errors=False)

    def matcher(self, grammar: str) -> LLMatcher:
        """A fresh matcher for `grammar_text`'s result, exactly as a worker builds it."""
        return LLMatcher(self.tokenizer, grammar, log_level=0, limits=self.limits)

    def compile(self, task: Task) -> Compiled | Rejected:
        """See `phloem_grammar.engine.Engine.compile`."""
        began = time.thread_time()
        try:
            grammar = grammar_text(task.kind, task.source)
        except ValueError as error:
            return Rejected(str(error))
        matcher = self.matcher(grammar)
        compile_ms = (time.thread_time() - began) * 1e3
        if matcher.is_error():
            return Rejected(_tidy(matcher.get_error()))
        times = try_masks(lambda: _Walker(self.matcher(grammar), self.tokenizer), task.budget)
        if isinstance(times, Times):
            return Compiled(grammar, compile_ms, times.first, times.slowest)
        return times


class _Walker:
    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self._matcher = matcher
        self._ends = tuple(tokenizer.eos_tokens)

    def mask(self) -> bytes | None:
        bits = self._matcher.compute_bitmask()
        return None if self._matcher.is_error() else clear_bits(bits, self._ends)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    def complaint(self) -> str:
        error = _tidy(self._matcher.get_error())
        return "" if error.startswith(SOLELY_UNSATISFIABLE) else error


def _tidy(error: str) -> str:
    return error.replace("<non-verbose/>", "").strip()
