"""Verdicts on grammars: asked for once per spec, kept, and awaited by requests outside the queue."""

from __future__ import annotations

from phloem_proto.messages import ErrorInfo, Grammar, GrammarSpec, Verdict

from .requests import Request

# A verdict is about the size of its grammar's source; 1,024 of them at the limit of 64 KiB a source are 64 MiB.
MOST_VERDICTS = 1024
# Only these say something about the spec. Anything else (busy, unavailable, deadline) is about the moment and is not kept.
LASTING = ("grammar_invalid", "grammar_unsupported", "grammar_too_large")

Key = tuple[str, str, bool]


def key_of(spec: GrammarSpec) -> Key:
    """What makes two specs the same."""
    return spec.kind, spec.source, spec.strict


class Grammars:
    """Single-flight: equal specs that come while one is being judged wait for the same answer."""

    def __init__(self) -> None:
        self._verdicts: dict[Key, Grammar | ErrorInfo] = {}  # least recently used first
        self._waiting: dict[Key, dict[bytes, Request]] = {}  # by rid

    @property
    def requests(self) -> int:
        """Requests that wait for a verdict."""
        return sum(len(requests) for requests in self._waiting.values())

    def known(self, spec: GrammarSpec) -> Grammar | ErrorInfo | None:
        """The verdict on spec if there is one."""
        key = key_of(spec)
        verdict = self._verdicts.pop(key, None)
        if verdict is not None:
            self._verdicts[key] = verdict
        return verdict

    def wait(self, request: Request) -> bool:
        """request waits for the verdict on its spec; returns whether it has to be asked for."""
        assert request.spec is not None
        key = key_of(request.spec)
        first = key not in self._waiting
        self._waiting.setdefault(key, {})[request.rid] = request
        return first

    def leave(self, request: Request) -> None:
        """request waits no longer. The judging goes on: its verdict may serve the next."""
        if request.spec is not None and (requests := self._waiting.get(key_of(request.spec))):
            requests.pop(request.rid, None)

    def judged(self, spec: GrammarSpec, verdict: Verdict) -> tuple[list[Request], Grammar | ErrorInfo]:
        """Those who waited, and what became of spec."""
        key = key_of(spec)
        answer = verdict.grammar or verdict.error or ErrorInfo("internal", "the grammar service gave no verdict")
        if isinstance(answer, Grammar) or answer.code in LASTING:
            self._verdicts[key] = answer
            while len(self._verdicts) > MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
        return list(self._waiting.pop(key, {}).values()), answer
