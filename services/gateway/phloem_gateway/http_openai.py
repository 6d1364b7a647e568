"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``."""

from __future__ import annotations

import time
from collections.abc import Callable

from phloem_proto.codec import pack_ids

from .answer import Answer, failure
from .errors import ApiError
from .exchange import Exchange
from .gateway import LARGE_BODY, Gateway
from .parse_openai import OpenAICall, parse_chat, parse_completion
from .render_openai import ChatReply, CompletionReply, OpenAIReply
from .serving import SlowClient, read_body

FIRST_OUTPUT_S = 10.0
"""A stream's headers wait this long for the first output, so that a refusal found by then (a grammar, say) is a proper HTTP error."""


class OpenAI:
    """Handlers of the OpenAI-compatible surface.

    Args:
        now: Unix time in seconds, for ``created``.
    """

    def __init__(self, gateway: Gateway, now: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._now = now
        self._started = int(now())

    async def chat(self, exchange: Exchange) -> None:
        """``POST /v1/chat/completions``."""
        body = await read_body(exchange, self._gateway.config)
        self._gateway.check_room()
        async with self._gateway.in_turn(len(body) > LARGE_BODY):
            call = parse_chat(body, self._gateway.facts, max_choices=self._gateway.config.max_choices)
        await exchange.while_connected(lambda: self._serve(exchange, call, "chatcmpl-"))

    async def completion(self, exchange: Exchange) -> None:
        """``POST /v1/completions``."""
        body = await read_body(exchange, self._gateway.config)
        self._gateway.check_room()
        async with self._gateway.in_turn(len(body) > LARGE_BODY):
            call = parse_completion(body, self._gateway.facts, max_choices=self._gateway.config.max_choices)
        await exchange.while_connected(lambda: self._serve(exchange, call, "cmpl-"))

    async def models(self, exchange: Exchange) -> None:
        """``GET /v1/models``."""
        await exchange.json({"object": "list", "data": [self._model()]})

    async def model(self, exchange: Exchange) -> None:
        """``GET /v1/models/{id}``."""
        wanted = exchange.scope["path_params"]["name"]
        if wanted != self._gateway.backends.model:
            raise ApiError("model_not_found", f"The model '{wanted[:128]}' does not exist here.", param="model")
        await exchange.json(self._model())

    def _model(self) -> dict[str, object]:
        facts = self._gateway.facts
        shown = {"id": facts.name, "object": "model", "created": self._started, "owned_by": "phloem"}
        return shown | ({"max_model_len": facts.context_length} if facts.context_length else {})

    async def _serve(self, exchange: Exchange, call: OpenAICall, prefix: str) -> None:
        async with self._gateway.answer(call.generations, exchange.owner, exchange.request_id) as answer:
            await answer.start()
            reply = await self._reply(call, prefix, answer)
            with answer.scope:
                await (_stream if call.stream else _whole)(exchange, answer, reply, self._gateway.config.keep_alive_s)
            if answer.scope.cancelled_caught:
                raise SlowClient

    async def _reply(self, call: OpenAICall, prefix: str, answer: Answer) -> OpenAIReply:
        ident, created = prefix + answer.lives[0].rid[::-1].hex()[:24], int(self._now())
        if prefix == "chatcmpl-":
            return ChatReply(call, ident, created, self._gateway.backends.model)
        prompts: list[str] = []
        if call.echo:
            prompts = [generation.text or "" for generation in call.generations]
            if call.generations[0].ids is not None:
                packed = tuple(pack_ids(generation.ids or ()) for generation in call.generations)
                prompts = list(
                    await self._gateway.texts.decode(packed, skip_special_tokens=False, deadline=answer.deadline)
                )
        return CompletionReply(call, ident, created, self._gateway.backends.model, prompts)


async def _whole(exchange: Exchange, answer: Answer, reply: OpenAIReply, keep_alive_s: float) -> None:
    while not answer.finished:
        for index, frame in await answer.take():
            reply.frame(index, frame)
            error = failure(frame.end, answer.generations[index]) if frame.end else None
            if error is not None:
                raise error
    await exchange.json(reply.whole(answer.lives))


async def _stream(exchange: Exchange, answer: Answer, reply: OpenAIReply, keep_alive_s: float) -> None:
    assert isinstance(reply, ChatReply | CompletionReply)
    frames = await answer.take(FIRST_OUTPUT_S)
    for index, frame in frames:
        error = failure(frame.end, answer.generations[index]) if frame.end else None
        if error is not None:
            raise error
    await exchange.start_events()
    await exchange.event(*reply.opening())
    while True:
        for index, frame in frames:
            error = failure(frame.end, answer.generations[index]) if frame.end else None
            if error is not None:
                raise error
            await exchange.event(*reply.chunks(index, frame))
        if answer.finished:
            break
        frames = await answer.take(keep_alive_s)
        if not frames:
            await exchange.comment()
    if reply.call.include_usage:
        await exchange.event(reply.usage_chunk(answer.lives))
    await exchange.done()
