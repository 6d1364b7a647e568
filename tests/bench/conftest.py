"""A fake OpenAI-compatible server on a free port. The request's ``model`` says how it behaves, so tests share one server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

GOOD_PERSON = '{"name":"Ann","age":3,"email":"a@b","member":true}'


@dataclass
class FakeServer:
    """Where it listens, and what it was asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    flushed: int = 0
    most_at_once: int = 0
    at_once: int = 0
    hanging: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    hung_up: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def seen(self, model: str) -> list[dict[str, Any]]:
        return [body for body in self.bodies if body["model"] == model]


@pytest.fixture(scope="session")
def fake() -> Iterator[FakeServer]:
    state = FakeServer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        state.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(
            uvicorn.Config(_app(state), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield state
        server.should_exit = True
        thread.join(10)


def _app(state: FakeServer) -> Starlette:
    async def complete(request: Request) -> Response:
        body = json.loads(await request.body())
        state.bodies.append(body)
        return await _answer(state, request, body)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "ok"}, {"id": "other"}]})

    async def flush(request: Request) -> Response:
        state.flushed += 1
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/models", models),
            Route("/flush_cache", flush, methods=["POST"]),
        ]
    )


def _prompt(body: dict[str, Any]) -> str:
    return str(body.get("prompt") or "\n".join(message["content"] for message in body["messages"]))


def _usage(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Two tokens a word and ten for the template, so that a fit has something to find; half the prompt is cached."""
    prompt = 10 + 2 * len(_prompt(body).split())
    details = {"cached_tokens": prompt // 2}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": details,
    }


async def _answer(state: FakeServer, request: Request, body: dict[str, Any]) -> Response:
    match body["model"]:
        case "overloaded":
            return JSONResponse({"error": {"message": "later", "code": "queue_full"}}, status_code=429)
        case "hangs":
            state.hanging.release()
            while (await request.receive())["type"] != "http.disconnect":
                pass
            state.hung_up.release()
        case "garbage":
            return Response("data: {not json\n\n", media_type="text/event-stream")
        case "closes":
            return Response("", media_type="text/event-stream", headers={"connection": "close"})
    pieces = _pieces(body)
    if body.get("stream"):
        return StreamingResponse(_stream(state, body, pieces), media_type="text/event-stream")
    text = "".join(pieces)
    choice = {"index": 0, "finish_reason": "stop", "text": text, "message": {"role": "assistant", "content": text}}
    return JSONResponse({"choices": [choice], "usage": _usage(body, len(pieces))})


def _pieces(body: dict[str, Any]) -> list[str]:
    if "response_format" in body:
        named = body["model"] == "follows" and "name" in body["response_format"]["json_schema"]["schema"]["properties"]
        return [GOOD_PERSON[:10], GOOD_PERSON[10:]] if named else ['{"name":', "3}"]
    return ["wörd "] * min(int(body["max_tokens"]), 8)


def _event(body: dict[str, Any], piece: str, **more: Any) -> str:
    chat = "messages" in body
    choice = {"index": 0, "finish_reason": None, **({"delta": {"content": piece}} if chat else {"text": piece})}
    return "data: " + json.dumps({"choices": [choice], **more}) + "\n\n"


async def _stream(state: FakeServer, body: dict[str, Any], pieces: list[str]) -> AsyncIterator[str]:
    state.at_once += 1
    state.most_at_once = max(state.most_at_once, state.at_once)
    try:
        yield ": keep-alive\n\n"
        for index, piece in enumerate(pieces):
            yield _event(body, piece)
            await asyncio.sleep(0.005)
            if body["model"] == "breaks" and index == 1:
                raise ConnectionError("the fake breaks")
            if body["model"] == "errs" and index == 1:
                yield 'data: {"error": {"message": "worker lost"}}\n\n'
                return
        yield 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n'.replace(
            "length", "stop" if "response_format" in body else "length"
        )
        if body["model"] != "no-usage":
            yield "data: " + json.dumps({"choices": [], "usage": _usage(body, len(pieces))}) + "\n\n"
        if body["model"] != "no-done":
            yield "data: [DONE]\n\n"
    finally:
        state.at_once -= 1
