"""Which grammar is compiled when, by which engine, and what everybody who asked is told. Sans-I/O.

ask ──> refused at once / in the cache ──────────────────────────> verdict
  └──> waits; several for one digest share one compile
next_task ──> (sandbox) ──> finish ──> verdict for all who wait
                               └──> next engine for the same grammar (llguidance refused it, xgrammar is proved)
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

from phloem_proto.messages import ErrorInfo, Grammar, GrammarSpec, Verdict

from .admission import xgrammar_gap
from .cache import LruCache
from .engine import Compiled, Died, Lost, MaskBudget, Outcome, Rejected, Task
from .explain import explain
from .gaps import llguidance_gap
from .limits import Limits
from .normalise import Normalised, normalise
from .refusal import INVALID, TOO_LARGE, Refused, over_limit

OPTIONS = "compact-1"
"""Names everything beside the source that shapes the language (whitespace, escapes, formats). Part of the digest: change it with them."""
KILLS_MAX = 2
"""A grammar whose compile was ended by force this often is not tried again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes of what the core keeps."""

    running: int = 2
    """Compiles at once."""
    waiting: int = 256
    """Callers who wait; beyond: ``busy``. At 20 ms a compile the last of them waits under 3 s."""
    cache_bytes: int = 64 * 1024 * 1024
    """Of verdicts, by the text they hold: hundreds of the largest sources allowed."""
    refusals: int = 4_096
    """Remembered refusals, under 1 KB each."""
    poisoned: int = 10_000
    """Remembered killers, 64 bytes each."""
    spellings: int = 4_096
    """Remembered source texts (by hash) whose digest is known, so that a repeated one is not parsed again."""


@dataclass(slots=True)
class Compile:
    """One digest being compiled."""

    digest: str
    spec: Normalised
    engine: str
    waiters: list[int] = field(default_factory=list)
    refused: Refused | None = None
    """Why an earlier engine did not take it."""
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Run ``task`` on ``engine`` and report to `GrammarCore.finish` under ``digest``."""

    digest: str
    engine: str
    task: Task


Answer = tuple[int, Verdict]
"""A ticket and what it is told."""


class GrammarCore:
    """See the module's picture. Tickets are numbers chosen by the caller, each used once."""

    def __init__(self, tokenizer_digest: str, limits: Limits, bounds: Bounds, budget: MaskBudget | None = None) -> None:
        self._tokenizer_digest = tokenizer_digest
        self._limits = limits
        self._bounds = bounds
        self._budget = budget or MaskBudget()
        self._verdicts: LruCache[Verdict] = LruCache(bounds.cache_bytes, _cost)
        self._refusals: LruCache[ErrorInfo] = LruCache(bounds.refusals)
        self._poison: LruCache[ErrorInfo] = LruCache(bounds.poisoned)
        self._kills: LruCache[int] = LruCache(bounds.poisoned)
        self._digests: LruCache[str] = LruCache(bounds.spellings)
        self._compiles: dict[str, Compile] = {}
        self._queue: deque[str] = deque()
        self._running: dict[str, Compile] = {}
        self._waiting: dict[int, str] = {}
        self.counters: dict[str, int] = dict.fromkeys(
            ("asked", "hits", "refused", "compiled", "killed", "lost", "busy"), 0
        )

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many compiles run."""
        return len(self._running)

    def ask(self, ticket: int, spec: GrammarSpec) -> Verdict | None:
        """A verdict if it is known already, else None: it comes from `finish`, or never after `cancel`."""
        self.counters["asked"] += 1
        spelling = hashlib.sha256(f"{spec.kind}\0{spec.source}".encode("utf-8", "surrogatepass")).hexdigest()
        digest = self._digests.get(spelling)
        known = self._known(digest) if digest else None
        if known is not None:
            return known
        try:
            normalised = normalise(spec, self._limits)
        except Refused as refused:
            self.counters["refused"] += 1
            return Verdict(error=refused.info())
        digest = self._digest(normalised)
        self._digests.put(spelling, digest)
        return self._known(digest) or self._join(ticket, digest, normalised)

    def cancel(self, ticket: int) -> None:
        """This caller waits no more. A compile that runs goes on for the others and for the cache."""
        digest = self._waiting.pop(ticket, None)
        if digest is None:
            return
        compile_ = self._compiles[digest]
        compile_.waiters.remove(ticket)
        if not compile_.waiters and digest not in self._running:
            self._queue.remove(digest)
            del self._compiles[digest]

    def next_task(self) -> Start | None:
        """What to run now, or None: nothing waits, or enough runs."""
        if not self._queue or len(self._running) >= self._bounds.running:
            return None
        digest = self._queue.popleft()
        compile_ = self._running[digest] = self._compiles[digest]
        return Start(digest, compile_.engine, Task(compile_.spec.kind, compile_.spec.source, self._budget))

    def finish(self, digest: str, outcome: Outcome) -> list[Answer]:
        """Take the outcome of a `Start`; the answers are for those who still wait. Ask `next_task` again afterwards."""
        compile_ = self._running.pop(digest)
        match outcome:
            case Compiled():
                return self._answer(compile_, self._accept(compile_, outcome))
            case Rejected():
                return self._reject(compile_, outcome)
            case Died():
                return self._answer(compile_, Verdict(error=self._died(compile_, outcome)))
            case Lost():
                return self._lost(compile_)

    def _digest(self, spec: Normalised) -> str:
        parts = (spec.kind, spec.source, OPTIONS, self._tokenizer_digest)
        return hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()

    def _known(self, digest: str) -> Verdict | None:
        verdict = self._verdicts.get(digest)
        if verdict is not None:
            self.counters["hits"] += 1
            return verdict
        error = self._poison.get(digest) or self._refusals.get(digest)
        if error is not None:
            self.counters["refused"] += 1
            return Verdict(error=error, cached=True)
        return None

    def _join(self, ticket: int, digest: str, spec: Normalised) -> Verdict | None:
        if len(self._waiting) >= self._bounds.waiting:
            self.counters["busy"] += 1
            return Verdict(error=ErrorInfo("busy", "too many grammars wait to be compiled", retry_after_ms=1000))
        compile_ = self._compiles.get(digest)
        if compile_ is None:
            route = self._route(digest, spec)
            if isinstance(route, Refused):
                return self._refuse(digest, route)
            compile_ = self._compiles[digest] = route
            self._queue.append(digest)
        compile_.waiters.append(ticket)
        self._waiting[ticket] = digest
        return None

    def _route(self, digest: str, spec: Normalised) -> Compile | Refused:
        """llguidance, unless it is known not to enforce this schema."""
        gap = llguidance_gap(spec.tree) if spec.tree is not None else None
        if gap is None:
            return Compile(digest, spec, "llguidance")
        return Compile(digest, spec, "xgrammar", refused=gap) if self._xgrammar_may(spec) else gap

    def _xgrammar_may(self, spec: Normalised) -> bool:
        return (
            spec.tree is not None and spec.enum_values <= self._limits.enum_values and xgrammar_gap(spec.tree) is None
        )

    def _accept(self, compile_: Compile, compiled: Compiled) -> Verdict:
        size = len(compiled.source.encode())
        if size > self._limits.verdict_bytes:
            return self._refuse(
                compile_.digest, over_limit("verdict_bytes", f"{size} bytes", self._limits.verdict_bytes)
            )
        self.counters["compiled"] += 1
        verdict = Verdict(
            Grammar(compile_.digest, compile_.engine, compile_.spec.kind, compiled.source),
            compile_ms=compiled.compile_ms,
            memory_bytes=compiled.memory_bytes,
            first_mask_ms=compiled.first_mask_ms,
        )
        self._verdicts.put(compile_.digest, _as_cached(verdict))
        return verdict

    def _reject(self, compile_: Compile, rejected: Rejected) -> list[Answer]:
        refused = compile_.refused or explain(rejected, compile_.spec.kind, compile_.spec.tree)
        if compile_.engine == "llguidance" and refused.code != INVALID and self._xgrammar_may(compile_.spec):
            compile_.refused = refused
            compile_.engine = "xgrammar"
            self._queue.appendleft(compile_.digest)
            return []
        return self._answer(compile_, self._refuse(compile_.digest, refused))

    def _refuse(self, digest: str, refused: Refused) -> Verdict:
        self.counters["refused"] += 1
        info = refused.info()
        self._refusals.put(digest, info)
        return Verdict(error=info)

    def _died(self, compile_: Compile, died: Died) -> ErrorInfo:
        """Over a limit of CPU time or memory: never again. Other deaths: once more at most. Ended by the clock: only if it really worked."""
        self.counters["killed"] += 1
        over = died.cause in ("cpu", "memory")
        if died.cause == "wall" and not died.worked:
            return ErrorInfo(
                "busy",
                "the grammar could not be compiled in time on this busy machine",
                param="grammar",
                retry_after_ms=1000,
            )
        kills = KILLS_MAX if over else (self._kills.get(compile_.digest) or 0) + 1
        self._kills.put(compile_.digest, kills)
        limit = f"compile_{died.cause}" if died.cause != "crash" else ""
        message = f"grammar over the limit {limit}" if limit else "the grammar crashes its engine"
        info = Refused(TOO_LARGE, message, limit=limit).info()
        if kills >= KILLS_MAX:
            self._poison.put(compile_.digest, info)
        return info

    def _lost(self, compile_: Compile) -> list[Answer]:
        """The sandbox went away, through no fault of this grammar: once more, then give up for now."""
        self.counters["lost"] += 1
        compile_.losses += 1
        if compile_.losses < 2:
            self._queue.appendleft(compile_.digest)
            return []
        error = ErrorInfo("unavailable", "the grammar sandbox is restarting", param="grammar", retry_after_ms=1000)
        return self._answer(compile_, Verdict(error=error))

    def _answer(self, compile_: Compile, verdict: Verdict) -> list[Answer]:
        del self._compiles[compile_.digest]
        for ticket in compile_.waiters:
            del self._waiting[ticket]
        return [(ticket, verdict) for ticket in compile_.waiters]


def _as_cached(verdict: Verdict) -> Verdict:
    return Verdict(verdict.grammar, None, verdict.compile_ms, verdict.memory_bytes, verdict.first_mask_ms, cached=True)


def _cost(verdict: Verdict) -> int:
    """Bytes that a cached verdict holds, roughly: its text (up to 4 bytes a character) and the objects around it."""
    return 1024 + 4 * len(verdict.grammar.source if verdict.grammar else "")
