"""``/generate``, ``/tokenize``, ``/detokenize`` and ``/flush_cache``."""

from __future__ import annotations

from typing import Any

import anyio

from phloem_bus.errors import BusError
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Flush, FlushReply
from phloem_proto.subjects import Role

from . import bodies, checks
from .answer import Answer, failure
from .chats import flatten
from .decode import decode, to_json
from .errors import ApiError, from_info, unavailable
from .exchange import Exchange
from .gateway import LARGE_BODY, OPENED_AT_ONCE, Gateway
from .parse_native import NativeCall, parse_generate
from .parse_openai import known_model
from .render_native import NativeReply
from .serving import SlowClient, read_body

MAX_FLUSH_S = 60.0
"""Longest wait for idleness that a flush may ask for."""


class Native:
    """Handlers of the native surface."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def generate(self, exchange: Exchange) -> None:
        """``POST /generate``."""
        body = await read_body(exchange, self._gateway.config)
        self._gateway.check_room()
        async with self._gateway.in_turn(len(body) > LARGE_BODY):
            call = parse_generate(body, self._gateway.facts, max_choices=self._gateway.config.max_choices)
        await exchange.while_connected(lambda: self._serve(exchange, call))

    async def _serve(self, exchange: Exchange, call: NativeCall) -> None:
        ident = exchange.request_id if call.batch or call.rids[0] is None else call.rids[0]
        called = self._gateway.answer(call.generations, exchange.owner, ident, logged_as=exchange.request_id)
        async with called as answer:
            await answer.start()
            reply = NativeReply(call, exchange.request_id)
            with answer.scope:
                await (self._stream if call.stream else self._whole)(exchange, answer, reply)
            if answer.scope.cancelled_caught:
                raise SlowClient

    async def _whole(self, exchange: Exchange, answer: Answer, reply: NativeReply) -> None:
        while not answer.finished:
            for index, frame in await answer.take():
                reply.frame(index, frame)
                _raise_error(answer, index, frame.end)
        async with self._gateway.in_turn(len(answer.lives) > OPENED_AT_ONCE):
            items = reply.whole(answer.lives, anyio.current_time() - answer.arrival)
            body = to_json(items if reply.call.batch else items[0])
        await exchange.reply(body, "application/json")

    async def _stream(self, exchange: Exchange, answer: Answer, reply: NativeReply) -> None:
        frames = await answer.take(self._gateway.config.keep_alive_s)
        for index, frame in frames:
            _raise_error(answer, index, frame.end)
        await exchange.start_events()
        while True:
            changed: dict[int, None] = {}
            for index, frame in frames:
                changed[reply.frame(index, frame)] = None
                _raise_error(answer, index, frame.end)
            elapsed = anyio.current_time() - answer.arrival
            await exchange.event(*(reply.item(choice, answer.lives, elapsed) for choice in changed))
            if answer.finished:
                break
            frames = await answer.take(self._gateway.config.keep_alive_s)
            if not frames:
                await exchange.comment()
        await exchange.done()

    async def tokenize(self, exchange: Exchange) -> None:
        """``POST /tokenize``."""
        wanted = decode(await read_body(exchange, self._gateway.config), bodies.TokenizeBody)
        facts = self._gateway.facts
        known_model(wanted.model, facts)
        if (wanted.prompt is None) == (wanted.messages is None):
            raise ApiError("invalid_request", "Give exactly one of 'prompt' and 'messages'.", param="prompt")
        many = isinstance(wanted.prompt, list)
        texts = (wanted.prompt,) if isinstance(wanted.prompt, str) else tuple(wanted.prompt or ())
        for text in texts:
            checks.unicode_text("prompt", text)
        messages = () if wanted.messages is None else flatten(wanted.messages)
        if not texts and not messages:
            raise checks.invalid("prompt", "at least one prompt")
        deadline = anyio.current_time() + self._gateway.config.request_timeout_s
        ids, _ = await self._gateway.texts.encode(
            texts, messages, add_special_tokens=wanted.add_special_tokens is not False, deadline=deadline
        )
        tokens = [list(unpack_ids(one)) for one in ids]
        shown: dict[str, Any] = {"tokens": tokens if many else tokens[0], "max_model_len": facts.context_length}
        shown["count"] = [len(one) for one in tokens] if many else len(tokens[0])
        await exchange.json(shown)

    async def detokenize(self, exchange: Exchange) -> None:
        """``POST /detokenize``."""
        wanted = decode(await read_body(exchange, self._gateway.config), bodies.DetokenizeBody)
        facts = self._gateway.facts
        known_model(wanted.model, facts)
        many = bool(wanted.tokens) and isinstance(wanted.tokens[0], list)
        lists = wanted.tokens if many else [wanted.tokens]
        packed = []
        for index, ids in enumerate(lists):
            where = f"tokens[{index}]" if many else "tokens"
            if not isinstance(ids, list):
                raise ApiError(
                    "invalid_type", f"Invalid type for '{where}': expected a list of token ids.", param=where
                )
            packed.append(pack_ids(checks.token_ids(where, ids, facts)))
        deadline = anyio.current_time() + self._gateway.config.request_timeout_s
        texts = await self._gateway.texts.decode(
            tuple(packed), skip_special_tokens=bool(wanted.skip_special_tokens), deadline=deadline
        )
        await exchange.json({"text": list(texts) if many else texts[0]})

    async def flush_cache(self, exchange: Exchange) -> None:
        """``GET|POST /flush_cache?timeout=SECONDS``: empty the prefix cache; 400 while requests are running."""
        text = dict(
            pair.partition("=")[::2] for pair in exchange.scope["query_string"].decode("latin-1").split("&")
        ).get("timeout", "0")
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = -1.0
        checks.within("timeout", timeout_s, 0.0, MAX_FLUSH_S, 0.0)
        pages = await flush(self._gateway, timeout_s)
        await exchange.json({"flushed_pages": pages})


async def flush(gateway: Gateway, timeout_s: float) -> int:
    """Ask the leading scheduler to empty its cache; returns how many pages that freed. Raises `ApiError`."""
    leader = gateway.backends.leader()
    if leader is None:
        raise unavailable("No scheduler is ready.")
    message = Flush(round(1000 * timeout_s))
    try:
        reply = await gateway.backends.presence.node.call(
            Role.SCHEDULER, leader.instance, message, FlushReply, timeout=timeout_s + 5.0
        )
    except BusError:
        raise unavailable("The scheduler did not answer.") from None
    if reply.error is not None:
        if reply.error.code in ("busy", "deadline"):
            raise ApiError("not_idle", "The cache can only be flushed while no request is running.")
        raise from_info(reply.error, {})
    return reply.flushed_pages


def _raise_error(answer: Answer, index: int, end: Any) -> None:
    """Raise for an end that is an error; an abort is a proper finish here."""
    if end is not None and end.reason == "error":
        error = failure(end, answer.generations[index])
        assert error is not None
        raise error
