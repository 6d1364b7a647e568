"""xgrammar: for schemas that llguidance refuses and `admission` proves, and later for EBNF and structural tags."""

from __future__ import annotations

import json
import time

import torch
import xgrammar
from tokenizers import Tokenizer

from .engine import Compiled, Rejected, Task, TokenizerSource
from .probe import Times, clear_bits, try_masks


def tokenizer_info(tokenizer: TokenizerSource) -> xgrammar.TokenizerInfo:
    """xgrammar's view of a tokenizer.json, without transformers."""
    text = tokenizer.read()
    vocabulary = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    pieces = [""] * (max(vocabulary.values()) + 1)
    for piece, index in vocabulary.items():
        pieces[index] = piece
    return xgrammar.TokenizerInfo(
        pieces, vocab_type=_vocabulary_type(text), vocab_size=len(pieces), stop_token_ids=list(tokenizer.eos_ids)
    )


def _vocabulary_type(text: str) -> xgrammar.VocabType:
    decoder = json.dumps(json.loads(text).get("decoder"))
    if '"ByteLevel"' in decoder:
        return xgrammar.VocabType.BYTE_LEVEL
    return xgrammar.VocabType.BYTE_FALLBACK if '"ByteFallback"' in decoder else xgrammar.VocabType.RAW


class Xgrammar:
    """The engine with a loaded tokenizer. Importing it brings torch (seconds, some 300 MB)."""

    def __init__(self, tokenizer: TokenizerSource) -> None:
        torch.set_num_threads(1)
        self.info = tokenizer_info(tokenizer)
        self.ends = frozenset(tokenizer.eos_ids)

    def compile(self, task: Task) -> Compiled | Rejected:
        """See `phloem_grammar.engine.Engine.compile`."""
        if task.kind != "json_schema":
            return Rejected(f"xgrammar is not asked for {task.kind}")
        began = time.thread_time()
        compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        try:
            # Compact JSON, and the standard's meaning of an absent additionalProperties. A worker must pass exactly the same.
            compiled = compiler.compile_json_schema(
                task.source, any_whitespace=False, indent=None, separators=(",", ":"), strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            return Rejected(str(error))
        compile_ms = (time.thread_time() - began) * 1e3
        times = try_masks(lambda: _Walker(compiled, self.info.vocab_size, self.ends), task.budget)
        if isinstance(times, Times):
            return Compiled(task.source, compile_ms, times.first, times.slowest)
        return times


class _Walker:
    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int, ends: frozenset[int]) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._size = vocab_size
        self._ends = ends

    def mask(self) -> bytes | None:
        if self._matcher.is_terminated():
            return b""
        self._matcher.fill_next_token_bitmask(self._bitmask)
        bits: bytes = self._bitmask[0].numpy().tobytes()
        beyond = range(self._size, 8 * len(bits))
        return clear_bits(bits, (*self._ends, *beyond))

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def accepting(self) -> bool:
        return bool(self._matcher.is_completed())

    def complaint(self) -> str:
        return ""
