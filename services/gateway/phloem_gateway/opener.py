"""The verb `open`: first to a detokeniser, then to the scheduler; tried again, there or elsewhere, while that may help."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio

from phloem_bus.errors import BusError, NoResponders, PayloadTooLarge
from phloem_bus.presence import Peer
from phloem_proto.messages import Cancel, ErrorInfo, Message, Open, OpenReply, OpenStream
from phloem_proto.subjects import Role

from .backends import Backends
from .core import Core
from .errors import ApiError, from_info, unavailable
from .live import Live
from .metrics import Metrics

CALL_S = 1.0
"""How long an `open` call may take: both sides only note the request and answer."""
BACKOFF_S = 0.05
"""First pause between tries; it doubles up to 1 s."""
_TRANSIENT = ("unavailable", "draining", "busy", "stale", "not_found")
"""Refusals that another instance, or the same a moment later, may not repeat."""


class _Refused(Exception):
    """An instance said no."""

    def __init__(self, info: ErrorInfo, instance: str) -> None:
        super().__init__(info.code)
        self.info = info
        self.instance = instance


class Opener:
    """Makes attempts for live requests.

    Args:
        gateway: our instance, to which text comes.
        tell: sends messages later, without waiting.
    """

    def __init__(
        self,
        core: Core,
        backends: Backends,
        metrics: Metrics,
        gateway: str,
        tell: Callable[[Iterable[tuple[Role, str, Message]]], None],
    ) -> None:
        self._tell = tell
        self._core = core
        self._backends = backends
        self._metrics = metrics
        self._node = backends.presence.node
        self._gateway = gateway

    async def open(self, live: Live, patience_s: float, *, prefer: str = "", persistent: bool = False) -> None:
        """Make attempts until one is accepted, the request has ended, or time is up.

        Args:
            patience_s: most seconds to try.
            prefer: tokenizer that should become the detokeniser.
            persistent: a request that was accepted before: no refusal for want of room ends it.

        Raises:
            ApiError: refused, or nobody to open it at in time.
        """
        now = anyio.current_time()
        until = min(now + patience_s, live.deadline)
        pause = BACKOFF_S
        exclude: tuple[str, ...] = ()
        while not live.ended:
            if live.attempt:
                self._metrics.reopened.inc()
            failure: ApiError
            try:
                leader, detokeniser = self._targets(prefer, exclude)
                await self._attempt(live, leader, detokeniser, accepted=persistent)
                if self._core.opened(live):
                    return
                failure = unavailable("The request was lost.")
            except _Refused as refused:
                failure = from_info(refused.info, live.generation.params)
                transient = refused.info.code in _TRANSIENT or (persistent and refused.info.code == "queue_full")
                if not transient:
                    raise failure from None
                exclude, prefer = (refused.instance,), ""
            except PayloadTooLarge:
                raise _too_large(live) from None
            except NoResponders:
                failure = unavailable("A service of this server is not reachable.")
                until = until if persistent else min(until, now + 0.8)
                exclude, prefer = (live.detokeniser,), ""
            except BusError:
                failure = unavailable("A service of this server did not answer in time.")
            except ApiError as error:
                failure = error
                exclude = ()
                until = until if persistent else min(until, now + 0.8)
            if anyio.current_time() + pause >= until:
                raise failure
            await anyio.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _targets(self, prefer: str, exclude: tuple[str, ...]) -> tuple[Peer, Peer]:
        leader = self._backends.leader()
        detokeniser = self._backends.detokeniser(prefer, exclude=exclude) or self._backends.detokeniser()
        if leader is None or not self._node.bus.connected:
            raise unavailable("No scheduler is ready.")
        if detokeniser is None:
            raise unavailable("No tokenizer is ready.")
        return leader, detokeniser

    async def _attempt(self, live: Live, leader: Peer, detokeniser: Peer, accepted: bool) -> None:
        """One attempt at both. Raises `_Refused` or what `Node.call` raises."""
        former = live.detokeniser
        attempt = self._core.begin_attempt(live, detokeniser.instance, (leader.instance, leader.incarnation))
        # Whatever comes of this attempt, the former stream is not needed any more.
        if former and former != detokeniser.instance:
            self._tell([(Role.TOKENIZER, former, Cancel(live.rid, attempt - 1))])
        have = live.have()
        wanted = live.generation.sampling
        stream = OpenStream(
            live.rid, attempt, self._gateway, wanted.n, have, wanted.stop, wanted.include_stop, wanted.skip_special_tokens,
            live.generation.logprobs >= 0 or live.generation.prompt_logprobs >= 0, _left_ms(live), live.params.max_tokens,
        )  # fmt: skip
        await self._call(Role.TOKENIZER, detokeniser.instance, stream)
        order = Open(
            live.rid, attempt, self._gateway, detokeniser.instance, live.prompt, live.params, live.seed, wanted.n, have,
            live.generation.grammar, live.generation.priority, live.generation.salt, _left_ms(live),
            round(1000 * (anyio.current_time() - live.arrival)), live.cached_tokens, live.generation.extra, accepted,
        )  # fmt: skip
        await self._call(Role.SCHEDULER, leader.instance, order)

    async def _call(self, role: Role, instance: str, message: Open | OpenStream) -> None:
        reply = await self._node.call(role, instance, message, OpenReply, timeout=CALL_S)
        if reply.error is not None:
            raise _Refused(reply.error, instance if role is Role.TOKENIZER else "")


def _left_ms(live: Live) -> int:
    """Milliseconds to the deadline, at least 1 (0 would mean none)."""
    return max(1, round(1000 * (live.deadline - anyio.current_time())))


def _too_large(live: Live) -> ApiError:
    return ApiError(
        "request_too_large",
        "The request is too large to be passed on inside this server.",
        param=live.generation.prompt_param,
    )
