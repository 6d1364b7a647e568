"""The OpenAI API as a load generator needs it: request bodies out, `Record`s in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from .http1 import BadResponse, Client, ConnectFailed, Disconnected, Response
from .record import Failure, Record
from .sse import EventTooLong, SseDecoder
from .workload import Item

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Api:
    """How requests are put."""

    model: str
    chat: bool = True
    """Chat completions; otherwise plain completions."""
    stream: bool = True
    temperature: float = 0.0
    ignore_eos: bool = True
    """Ask for exactly max_tokens tokens (an extension that Phloem, vLLM, SGLang and llama.cpp share); never with a schema."""
    timeout_s: float = 600.0
    """A request that takes longer counts as failed."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields for each body; they beat ours."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, item: Item) -> bytes:
        """The request body for ``item``."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": item.output_tokens, "temperature": self.temperature}
        if self.chat:
            system = [{"role": "system", "content": item.system}] if item.system else []
            body["messages"] = [*system, {"role": "user", "content": item.user}]
        else:
            body["prompt"] = item.prompt
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if item.schema is not None:
            schema = {"name": "answer", "schema": item.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body | self.extra)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None

    @property
    def output(self) -> str:
        part = self.delta or self.message
        return (part.content if part else self.text) or ""


class _Reply(msgspec.Struct):
    """A whole reply, or one chunk of a streamed one."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Reply)


async def perform(client: Client, api: Api, item: Item, record: Record, now: Now) -> None:
    """Send ``item`` and fill ``record``; every failure of the server becomes part of the record, none is raised."""
    body = api.body(item)
    keep_text = item.schema is not None
    record.start_s = now()
    try:
        with anyio.fail_after(api.timeout_s):
            async with client.request("POST", api.path, body) as response:
                await _take(response, api, record, now, keep_text)
    except TimeoutError:
        record.fail(Failure.TIMEOUT, f"no complete reply within {api.timeout_s:g} s")
    except ConnectFailed as error:
        record.fail(Failure.CONNECT, str(error))
    except Disconnected as error:
        record.fail(Failure.DISCONNECTED, str(error))
    except (BadResponse, EventTooLong, msgspec.DecodeError) as error:
        record.fail(Failure.BAD_REPLY, str(error))
    record.end_s = now()
    if record.output_tokens == 0:
        record.fail(Failure.EMPTY, "the reply holds no output")


async def _take(response: Response, api: Api, record: Record, now: Now, keep_text: bool) -> None:
    if response.status != 200:
        record.fail(f"http_{response.status}", (await response.read()).decode("utf-8", "replace"))
    elif api.stream:
        await _take_stream(response, record, now, keep_text)
    else:
        _note(_decoder.decode(await response.read()), record, keep_text)


async def _take_stream(response: Response, record: Record, now: Now, keep_text: bool) -> None:
    """Read the stream to its end. Pieces that arrive together share an arrival time, so their gaps are 0."""
    events = SseDecoder()
    ended = False
    while data := await response.receive():
        arrived = now()
        for payload in events.feed(data):
            if payload == b"[DONE]":
                ended = True
            elif _note(_decoder.decode(payload), record, keep_text):
                _note_arrival(record, arrived)
    if not ended:
        record.fail(Failure.DISCONNECTED, "the stream ended without [DONE]")


def _note_arrival(record: Record, arrived: float) -> None:
    if record.first_s is None or record.last_s is None:
        record.first_s = arrived
    else:
        record.gaps_s.append(arrived - record.last_s)
    record.last_s = arrived


def _note(reply: _Reply, record: Record, keep_text: bool) -> bool:
    """Take one reply or chunk into the record; says whether it holds output."""
    if reply.error is not None:
        record.fail(Failure.STREAM_ERROR, str(reply.error))
    output = False
    for choice in reply.choices:
        if choice.output:
            output = True
            if keep_text:
                record.text += choice.output
        if choice.finish_reason:
            record.finish_reason = choice.finish_reason
            if choice.finish_reason in ("error", "abort"):
                record.fail(Failure.STREAM_ERROR, f"finish_reason {choice.finish_reason}")
    if reply.usage is not None:
        _note_usage(reply.usage, record)
    elif output and not record.counted:
        record.output_tokens += 1
    return output


def _note_usage(usage: _Usage, record: Record) -> None:
    record.counted = True
    record.input_tokens = usage.prompt_tokens
    record.output_tokens = usage.completion_tokens or 0
    details = usage.prompt_tokens_details
    record.cached_tokens = (details.cached_tokens or 0) if details else 0
