"""Calls to tokenizers: prompts to ids, ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import anyio

from phloem_bus.errors import BusError, NoPeer, PayloadTooLarge, TimedOut
from phloem_proto.codec import pack_ids
from phloem_proto.messages import ChatMessage, Detokenize, Detokenized, Encode, Encoded
from phloem_proto.subjects import Role

from .backends import Backends
from .errors import ApiError, from_info, unavailable
from .request import Generation

Reply = TypeVar("Reply", Encoded, Detokenized)

TRY_S = 3.0
"""How long a tokenizer may take over a small text. The bus delivers at most once: a call without an answer is made again."""
BYTES_PER_S = 250_000
"""Text that a busy tokenizer gets through in a second; large texts get more time accordingly."""
TRIES = 3
AT_ONCE = 32
"""Calls in flight per tokenizer, half of what one takes by itself. The others wait here, in order: the tokenizer would refuse them."""
BUSY_S = 10.0
"""How long a call is made again that tokenizers are too busy for (others call them too). Less than it takes clients to give up."""
BUSY_PAUSE_S = 0.1
_LATE = "No tokenizer answered in time."
_SMALL = {"texts": "prompt", "messages": "messages", "ids": "tokens"}


class Texts:
    """Encodes and decodes through the least busy tokenizer."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._turns = anyio.CapacityLimiter(AT_ONCE)

    async def prompts(self, generations: Sequence[Generation], deadline: float) -> tuple[list[bytes], str]:
        """The ids of each generation's prompt, and the tokenizer that encoded them ("" if none had to).

        Raises:
            ApiError: refused (prompt too long, template error ...), or no tokenizer answers.
        """
        first = generations[0]
        if first.ids is not None:
            return [pack_ids(generation.ids or ()) for generation in generations], ""
        context = self._backends.facts().context_length
        encoded, tokenizer = await self.encode(
            tuple(generation.text or "" for generation in generations) if not first.messages else (),
            first.messages,
            add_special_tokens=first.add_special_tokens,
            template_kwargs=first.template_kwargs,
            max_tokens=max(context - 1, 0),
            deadline=deadline,
            params=first.params,
        )
        return encoded, tokenizer

    async def encode(
        self,
        texts: tuple[str, ...],
        messages: tuple[ChatMessage, ...] = (),
        *,
        add_special_tokens: bool = True,
        template_kwargs: str = "",
        max_tokens: int = 0,
        deadline: float,
        params: dict[str, str] | None = None,
    ) -> tuple[list[bytes], str]:
        """Ids per text (one for a chat) and the tokenizer that answered. Raises `ApiError`."""
        left = max(1, round(1000 * (deadline - anyio.current_time())))
        message = Encode(texts, messages, add_special_tokens, max_tokens, left, template_kwargs)
        names = _SMALL if params is None else params
        reply, instance = await self._call(message, Encoded, deadline, names)
        if len(reply.ids) != (len(texts) or 1):
            raise unavailable("A tokenizer gave an incomplete answer.")
        return list(reply.ids), instance

    async def decode(
        self, ids: tuple[bytes, ...], *, skip_special_tokens: bool = True, deadline: float
    ) -> tuple[str, ...]:
        """Text per list of ids. Raises `ApiError`."""
        reply, _ = await self._call(Detokenize(ids, skip_special_tokens), Detokenized, deadline, _SMALL)
        return reply.texts

    async def _call(
        self, message: Encode | Detokenize, kind: type[Reply], deadline: float, params: dict[str, str]
    ) -> tuple[Reply, str]:
        self._backends.require_tokenizer()
        self._turns.total_tokens = AT_ONCE * self._backends.tokenizers()
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                await self._turns.acquire()
        except TimeoutError:
            raise unavailable(_LATE) from None
        try:
            reply, instance = await self._until_taken(message, kind, deadline, params)
        finally:
            self._turns.release()
        if reply.error is not None:
            raise from_info(reply.error, params)
        return reply, instance

    async def _until_taken(
        self, message: Encode | Detokenize, kind: type[Reply], deadline: float, params: dict[str, str]
    ) -> tuple[Reply, str]:
        """An answer, a busy one only if tokenizers stay busy."""
        give_up = min(deadline, anyio.current_time() + BUSY_S)
        while True:
            reply, instance = await self._tried(message, kind, deadline, params)
            if not _busy(reply) or anyio.current_time() + BUSY_PAUSE_S >= give_up:
                return reply, instance
            await anyio.sleep(BUSY_PAUSE_S)

    async def _tried(
        self, message: Encode | Detokenize, kind: type[Reply], deadline: float, params: dict[str, str]
    ) -> tuple[Reply, str]:
        """An answer, in spite of lost messages."""
        for _ in range(TRIES):
            self._backends.require_tokenizer()
            limit = TRY_S + _size(message) / BYTES_PER_S
            timeout = min(limit, max(deadline - anyio.current_time(), 0.001))
            try:
                reply, peer = await self._backends.presence.call(
                    Role.TOKENIZER, message, kind, timeout=timeout, busy=_busy
                )
                return reply, peer.instance
            except PayloadTooLarge:
                param = params.get("messages" if isinstance(message, Encode) and message.messages else "texts")
                told = "The prompt is too large to be passed on inside this server."
                raise ApiError("request_too_large", told, param=param) from None
            except NoPeer:
                raise unavailable("No tokenizer is ready.") from None
            except TimedOut:
                continue
            except BusError:
                break
        raise unavailable(_LATE)


def _busy(reply: Encoded | Detokenized) -> bool:
    return reply.error is not None and reply.error.code == "busy"


def _size(message: Encode | Detokenize) -> int:
    """Bytes of what is to be worked on."""
    if isinstance(message, Detokenize):
        return sum(map(len, message.ids))
    return sum(map(len, message.texts)) + sum(len(one.content) for one in message.messages)
