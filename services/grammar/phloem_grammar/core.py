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

from .cache import LruCache
from .engine import Compiled, Died, Lost, MaskBudget, Outcome, Rejected, Task
from .explain import explain
from .limits import Limits
from .normalise import Normalised
from .refusal import INVALID, TOO_LARGE, Refused, over_limit
from .route import Route, route

OPTIONS = "compact-1"
"""Names everything beside the source that shapes the language (whitespace, escapes, formats). Part of the digest: change it with them."""
KILLS_MAX = 2
"""A grammar whose compile was ended by force this often is not tried again."""


COUNTED = {
    "asked": "Specs that were read",
    "hits": "Verdicts given from the cache",
    "refused": "Refusals, remembered ones included",
    "compiled": "Grammars compiled",
    "killed": "Compiles that were killed or crashed",
    "lost": "Compiles lost with their sandbox",
    "busy": "Callers turned away",
}
"""The core's counters and what they count."""


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
    engines: list[str]
    """Still to be asked, the first one now."""
    rid: bytes
    """Request that asked first, for log lines."""
    refused: Refused | None = None
    """Why an earlier engine did not take it."""
    waiters: list[int] = field(default_factory=list)
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Run ``task`` on ``engine`` and report to `GrammarCore.finish` under ``digest``."""

    digest: str
    engine: str
    task: Task
    rid: bytes
    """Request that asked first, for log lines."""


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
        self.counters: dict[str, int] = dict.fromkeys(COUNTED, 0)

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many compiles run."""
        return len(self._running)

    def known(self, spec: GrammarSpec) -> Verdict | None:
        """The verdict on a spec that was given in exactly these words before, if it is still kept."""
        digest = self._digests.get(_spelling(spec))
        return self._kept(digest) if digest else None

    def ask(
        self, ticket: int, spec: GrammarSpec, routed: Route | Refused | None = None, rid: bytes = b""
    ) -> Verdict | None:
        """A verdict if there is one at once, else None: it comes from `finish`, or never after `cancel`.

        Args:
            routed: what `route` gave or raised for this spec, where the caller ran it elsewhere.
            rid: the request that asks; a compile is told under that of the first.
        """
        self.counters["asked"] += 1
        if routed is None:
            try:
                routed = route(spec, self._limits)
            except Refused as refused:
                routed = refused
        if isinstance(routed, Refused):
            self.counters["refused"] += 1
            return Verdict(error=routed.info())
        digest = self._digest(routed.spec)
        self._digests.put(_spelling(spec), digest)
        return self._kept(digest) or self._join(ticket, digest, routed, rid)

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
        task = Task(compile_.spec.kind, compile_.spec.source, self._budget)
        return Start(digest, compile_.engines[0], task, compile_.rid)

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

    def _kept(self, digest: str) -> Verdict | None:
        verdict = self._verdicts.get(digest)
        if verdict is not None:
            self.counters["hits"] += 1
            return verdict
        error = self._poison.get(digest) or self._refusals.get(digest)
        if error is not None:
            self.counters["refused"] += 1
            return Verdict(error=error, cached=True)
        return None

    def _join(self, ticket: int, digest: str, routed: Route, rid: bytes) -> Verdict | None:
        if len(self._waiting) >= self._bounds.waiting:
            self.counters["busy"] += 1
            return Verdict(error=ErrorInfo("busy", "too many grammars wait to be compiled", retry_after_ms=1000))
        compile_ = self._compiles.get(digest)
        if compile_ is None:
            compile_ = Compile(digest, routed.spec, list(routed.engines), rid, routed.gap)
            self._compiles[digest] = compile_
            self._queue.append(digest)
        compile_.waiters.append(ticket)
        self._waiting[ticket] = digest
        return None

    def _accept(self, compile_: Compile, compiled: Compiled) -> Verdict:
        size = len(compiled.source.encode())
        if size > self._limits.verdict_bytes:
            return self._refuse(
                compile_.digest, over_limit("verdict_bytes", f"{size} bytes", self._limits.verdict_bytes)
            )
        self.counters["compiled"] += 1
        verdict = Verdict(
            Grammar(compile_.digest, compile_.engines[0], compile_.spec.kind, compiled.source),
            compile_ms=compiled.compile_ms,
            memory_bytes=compiled.memory_bytes,
            first_mask_ms=compiled.first_mask_ms,
        )
        self._verdicts.put(compile_.digest, _as_cached(verdict))
        return verdict

    def _reject(self, compile_: Compile, rejected: Rejected) -> list[Answer]:
        """The first refusal is the one that is told: it comes from the engine that knows most."""
        refused = compile_.refused or explain(rejected, compile_.spec.kind, compile_.spec.tree)
        if len(compile_.engines) > 1 and refused.code != INVALID:
            compile_.refused = refused
            del compile_.engines[0]
            self._queue.appendleft(compile_.digest)
            return []
        return self._answer(compile_, self._refuse(compile_.digest, refused))

    def _refuse(self, digest: str, refused: Refused) -> Verdict:
        self.counters["refused"] += 1
        info = refused.info()
        self._refusals.put(digest, info)
        return Verdict(error=info)

    def _died(self, compile_: Compile, died: Died) -> ErrorInfo:
        """Over a limit of CPU time or memory: never again. Other deaths: once more at most; none if it only starved."""
        self.counters["killed"] += 1
        over = died.cause in ("cpu", "memory")
        if died.cause == "wall" and died.starved:
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


def _spelling(spec: GrammarSpec) -> str:
    return hashlib.sha256(f"{spec.kind}\0{spec.source}".encode("utf-8", "surrogatepass")).hexdigest()


def _as_cached(verdict: Verdict) -> Verdict:
    return Verdict(verdict.grammar, None, verdict.compile_ms, verdict.memory_bytes, verdict.first_mask_ms, cached=True)


def _cost(verdict: Verdict) -> int:
    """Bytes that a cached verdict holds, roughly: its text (up to 4 bytes a character) and the objects around it."""
    return 1024 + 4 * len(verdict.grammar.source if verdict.grammar else "")
