"""The verb `open`: submit, retry, resume, re-route and replay."""

from __future__ import annotations

from collections.abc import Callable

from phloem_proto.messages import End, ErrorInfo, Held, Open, OpenReply

from .counters import Counters
from .grammars import Grammars
from .ledger import Ledger
from .lifecycle import Lifecycle
from .node import TOKEN_BYTES
from .requests import Choice, Request, Stage
from .settings import Settings
from .worker import WorkerState

# n > 1 is for a handful of alternatives; each takes a slot of its own.
MOST_CHOICES = 128


class Opening:
    """Takes requests in, or says why not."""

    def __init__(
        self, settings: Settings, ledger: Ledger, life: Lifecycle, grammars: Grammars, counters: Counters
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.life = life
        self.grammars = grammars
        self.counters = counters
        self.draining = False
        self._opened = 0

    def known(self, message: Open, now: float) -> Request | ErrorInfo | None:
        """What is already known under this rid: the live request, or why this attempt comes too late; None for a new one.

        A higher attempt of a live request adopts it: it goes on, and is told anew from `have` on, along the new route.
        """
        request = self.ledger.requests.get(message.rid)
        if self.ledger.buried(message.rid, message.attempt) or (
            request is not None and message.attempt < request.attempt
        ):
            self.counters.stale += 1
            return ErrorInfo("stale", "a later attempt of this request is known")
        if request is not None and message.attempt > request.attempt:
            if (problem := malformed(message)) is not None:
                return problem
            if message.n != len(request.choices):
                return ErrorInfo("invalid_request", "n: must stay what it was", param="n")
            self._adopt(request, message, now)
        return request

    def _adopt(self, request: Request, message: Open, now: float) -> None:
        self.counters.adopted += 1
        self.life.outbox.drop(request)
        self.ledger.leave_gateway(request)
        request.attempt, request.gateway, request.detokeniser = message.attempt, message.gateway, message.detokeniser
        request.deadline = deadline(message, now)
        request.missed = 0
        self.ledger.add(request)
        held = message.have or (Held(),) * len(request.choices)
        for choice, have in zip(request.choices, held, strict=False):
            if choice.stage is Stage.ENDED:
                continue
            if have.ended:
                self.grammars.leave(request)
                self.life.end(choice, End("stop"), tell=False)
            elif len(have.ids) > len(choice.output) * TOKEN_BYTES:
                self.life.restart(choice, have.ids)
        request.told_from = [told_from(have) for have in held]
        self.life.outbox.resend(request, request.told_from)

    def refusal(
        self,
        message: Open,
        waiting: int,
        workers: list[WorkerState],
        retry_after_ms: Callable[[], int],
        recovering: bool,
    ) -> ErrorInfo | None:
        """Why a new request can't be taken. One that was accepted before, here or by a former leader, is never refused for want of room.

        ``recovering``: such requests are coming back just now, and go first.
        """
        if (problem := malformed(message)) is not None:
            return problem
        if self.draining:
            return ErrorInfo("draining", "the scheduler is shutting down", retry_after_ms=1000)
        if message.accepted or message.have or message.cached_tokens >= 0:
            return None
        if recovering:
            return ErrorInfo("unavailable", "requests of the former leader are taken back first", retry_after_ms=1000)
        if not workers:
            return ErrorInfo("unavailable", "no worker is ready", retry_after_ms=1000)
        if waiting + message.n > self.settings.max_queued:
            text = f"{waiting} requests are waiting; the queue holds {self.settings.max_queued}"
            return ErrorInfo("queue_full", text, retry_after_ms=retry_after_ms())
        prompt, most = len(message.ids) // TOKEN_BYTES, max(worker.capacity for worker in workers)
        if prompt + min(1, message.params.max_tokens) > most:
            text = f"the prompt has {prompt} tokens; at most {most} fit, output included"
            return ErrorInfo("prompt_too_long", text, param="ids")
        return None

    def admit(self, message: Open, now: float) -> Request:
        """Enter a new request that is not refused; its choices are in stage judging, those the client has complete in stage ended."""
        self._opened += 1
        request = Request(
            rid=message.rid,
            attempt=message.attempt,
            gateway=message.gateway,
            detokeniser=message.detokeniser,
            ids=message.ids,
            params=message.params,
            seed=message.seed,
            priority=message.priority,
            namespace=(message.salt, message.extra),
            arrival=now - message.age_ms / 1000,
            number=self._opened,
            deadline=deadline(message, now),
            spec=message.grammar,
            cached_tokens=message.cached_tokens,
            stop_ids=frozenset(message.params.stop_token_ids),
        )
        held = message.have or (Held(),) * message.n
        request.choices = [Choice(request, child, have.ids) for child, have in enumerate(held)]
        request.told_from = [told_from(have) for have in held]
        self.ledger.add(request)
        self.counters.requests += 1
        self.life.live += len(request.choices)
        for choice, have in zip(request.choices, held, strict=True):
            if have.ended:
                self.life.end(choice, End("stop"), tell=False)
        return request


def told_from(have: Held) -> int | None:
    """From which output token on the gateway wants to be told of a choice; None if it has all of it."""
    return None if have.ended else len(have.ids) // TOKEN_BYTES


def deadline(message: Open, now: float) -> float | None:
    """The deadline on our clock."""
    return now + message.deadline_ms / 1000 if message.deadline_ms > 0 else None


def malformed(message: Open) -> ErrorInfo | None:
    """The field of message that no well-behaved gateway would send so."""
    problem = None
    if not message.ids or len(message.ids) % TOKEN_BYTES:
        problem = ("ids", "must be one or more uint32 token ids")
    elif not 1 <= message.n <= MOST_CHOICES:
        problem = ("n", f"must be between 1 and {MOST_CHOICES}")
    elif message.have and len(message.have) != message.n:
        problem = ("have", "must be empty or have one entry for each of the n choices")
    elif any(len(have.ids) % TOKEN_BYTES for have in message.have):
        problem = ("have", "must hold uint32 token ids")
    elif message.params.max_tokens < 0:
        problem = ("params.max_tokens", "must not be negative")
    return ErrorInfo("invalid_request", f"{problem[0]}: {problem[1]}", param=problem[0]) if problem else None


def accepted(message: Open, error: ErrorInfo | None = None) -> OpenReply:
    """The reply to message."""
    return OpenReply(message.rid, message.attempt, error)
