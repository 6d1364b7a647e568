"""Leases on prefixes: a prompt is computed, then kept in its worker's cache for as long as its owner says."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from phloem_proto.messages import ErrorInfo, Pin, PinInfo, PinReply, Pins, PinsReply, Radix, RadixReply, Unpin

from .answer import failure
from .backends import Backends
from .checks import invalid
from .errors import ApiError, from_info, unavailable
from .leading import call_leader
from .live import Live
from .parse_pins import PinWish

if TYPE_CHECKING:
    from .gateway import Gateway

TRIES = 3
"""How often a prompt is computed when some of its pages are evicted before they are kept."""
LET_GO_S = 2.0
"""How long a client's end may wait until the lease that it will not hear of is given back."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A new lease. ``cached_tokens``: how much of the prompt was in the cache before."""

    info: PinInfo
    prompt_tokens: int
    cached_tokens: int


class PinDesk:
    """Makes, renews, ends and lists leases. An owner (`Keys.owner`) sees only its own.

    Args:
        rng: draws ids.
    """

    def __init__(self, gateway: Gateway, backends: Backends, rng: random.Random) -> None:
        self._gateway = gateway
        self._backends = backends
        self._rng = rng
        self._page_size = (("", 0), 0)

    async def pin(self, owner: str, wish: PinWish, request_id: str, timeout_s: float | None = None) -> Pinned:
        """Compute a prompt and keep it. A lease of ``owner`` with the same id is replaced, or left as it is if that fails.

        What the result says is kept may be less than the prompt, if pages went in between each time. Whoever does not hear of its lease, as it
        left or gets an error, does not have one, unless it gave the id.

        Raises:
            ApiError: refused, too many leases, or nobody to do it.
        """
        ident = f"pin-{self._rng.randbytes(12).hex()}" if wish.ident is None else wish.ident
        limit = self._gateway.config.request_timeout_s
        end = anyio.current_time() + (limit if timeout_s is None else min(limit, timeout_s))
        page_size = await self._tokens_per_page()
        cached, kept, unheard = 0, None, False
        try:
            for attempt in range(TRIES):
                live = await self._compute(owner, wish, request_id, end - anyio.current_time())
                if attempt == 0:
                    cached = max(live.cached_tokens, 0)
                whole = _whole_pages(wish, live.prompt_tokens, page_size)
                unheard = wish.ident is None
                kept = await self._keep(owner, ident, wish, live.prompt)
                if kept is not None and kept.tokens >= whole:
                    break
        except BaseException:
            if unheard:
                await self._let_go(owner, ident)
            raise
        if kept is None:
            raise unavailable("Nothing of the prompt stayed in the cache for long enough to be kept.")
        return Pinned(kept, live.prompt_tokens, cached)

    async def _let_go(self, owner: str, ident: str) -> None:
        """End a lease that may have been made; one that can't be reached ends with its time."""
        with anyio.move_on_after(LET_GO_S, shield=True), suppress(ApiError):
            await self._call(Unpin(owner, ident))

    async def renew(self, owner: str, ident: str, ttl_ms: int) -> PinInfo:
        """Let a lease end ``ttl_ms`` from now. Raises `ApiError`."""
        instance = self._backends.presence.node.instance
        return _known(await self._call(Pin(owner, ident, instance, ttl_ms)))

    async def end(self, owner: str, ident: str) -> PinInfo:
        """End a lease; returns what it was. Raises `ApiError`."""
        return _known(await self._call(Unpin(owner, ident)))

    async def list(self, owner: str) -> tuple[PinInfo, ...]:
        """The owner's leases, oldest first. Raises `ApiError`."""
        return (await call_leader(self._backends, Pins(owner), PinsReply)).pins

    async def _compute(self, owner: str, wish: PinWish, request_id: str, timeout_s: float) -> Live:
        """Have a worker read the prompt. Raises `ApiError`."""
        async with self._gateway.answer((wish.generation,), owner, request_id, timeout_s) as answer:
            await answer.start()
            while not answer.finished:
                for _, frame in await answer.take():
                    error = failure(frame.end, wish.generation) if frame.end else None
                    if error is not None:
                        raise error
            return answer.lives[0]

    async def _keep(self, owner: str, ident: str, wish: PinWish, ids: bytes) -> PinInfo | None:
        """Take out the lease; None if nothing of the prompt is there any more, and so no new lease. Raises `ApiError`."""
        instance = self._backends.presence.node.instance
        generation = wish.generation
        reply = await self._call(
            Pin(owner, ident, instance, wish.ttl_ms, ids, generation.salt, generation.extra, replace=True)
        )
        if reply.error is not None:
            raise _refusal(reply.error, generation.params)
        return reply.info if reply.info is not None and reply.info.tokens else None

    async def _call(self, message: Pin | Unpin) -> PinReply:
        return await call_leader(self._backends, message, PinReply)

    async def _tokens_per_page(self) -> int:
        """The page size, asked once of each leader; 0 = not known. Raises `ApiError`."""
        leader = await self._backends.require()
        known, size = self._page_size
        if known != (leader.instance, leader.incarnation) or not size:
            reply = await call_leader(self._backends, Radix(1, 0), RadixReply)
            size = reply.page_size
            self._page_size = (leader.instance, leader.incarnation), size
        return size


def _whole_pages(wish: PinWish, tokens: int, page_size: int) -> int:
    """Tokens of a prompt that fill pages: what can be kept. Raises `ApiError` if that is nothing."""
    if page_size < 1:
        return 0
    if tokens < page_size:
        raise invalid(wish.generation.prompt_param, f"a prompt of at least one page ({page_size} tokens)", tokens)
    return tokens - tokens % page_size


def _known(reply: PinReply) -> PinInfo:
    """The lease that a reply speaks of. Raises `ApiError`."""
    if reply.error is not None and reply.error.code not in ("not_found", "invalid_request"):
        raise _refusal(reply.error, {})
    if reply.error is not None or reply.info is None:
        raise ApiError("invalid_request", "You have no pin with this id.", param="id")
    return reply.info


def _refusal(error: ErrorInfo, params: dict[str, str]) -> ApiError:
    """A refusal in the client's terms; over a limit is 429 here, and no fault of the server."""
    return from_info(ErrorInfo("queue_full" if error.code == "busy" else error.code, error.message, error.param,
                               error.retry_after_ms), params)  # fmt: skip
