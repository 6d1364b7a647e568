"""A client of a simulated gateway: one call, tried again where a real one would try again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from .process import Process
from .scenario import Call
from .trace import Trace

PAUSE_S = 0.25
"""Before a refused or broken call is tried again."""
REFUSED_WITHIN_S = 10.0
"""A refusal that comes later is the loss of a request that had been accepted: tokenising and opening are tried for some 4 s, and each of
their calls may take a second of its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice as the client has it."""

    text: str
    ids: tuple[int, ...]
    finish: str
    """Finish reason, as JSON."""
    logprobs: str
    """Of output tokens and their alternatives, as JSON."""


@dataclass(slots=True)
class Outcome:
    """What became of a call."""

    answers: dict[int, Answer] = field(default_factory=dict)
    """By choice, once all have ended."""
    tries: int = 0
    refused: int = 0
    broken: int = 0
    """Connections that broke because their gateway died."""
    left: bool = False
    longest_gap_s: float = 0.0
    """Between events of a stream."""


class _Broken(Exception):
    """Raised when the connection breaks."""


@dataclass(slots=True)
class _Exchange:
    """One try on plain ASGI."""

    call: Call
    complain: Callable[[str], None]
    now: Callable[[], float]
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    events: int = 0
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    done: bool = False
    gone: anyio.Event = field(default_factory=anyio.Event)
    last_event_at: float | None = None
    gap_s: float = 0.0

    def take(self, data: bytes) -> None:
        """Bytes of the reply's body."""
        self.body += data
        if self.call.body["stream"] and self.status == 200:
            self._take_events()

    def finish(self) -> None:
        """The reply is complete."""
        if self.call.body["stream"] and self.status == 200:
            return
        reply = json.loads(self.body)
        if self.status != 200:
            self.error = reply["error"]
            return
        for item in reply if isinstance(reply, list) else [reply]:
            self.items[item.get("index", 0)] = item
        self.done = True

    def _take_events(self) -> None:
        while (end := self.body.find(b"\n\n")) >= 0:
            line = bytes(self.body[:end])
            del self.body[: end + 2]
            if not line.startswith(b"data: "):
                continue
            if self.done:
                self.complain(f"call {self.call.number}: something came after [DONE]")
            elif line == b"data: [DONE]":
                self.done = True
            else:
                self._take_event(json.loads(line[6:]))

    def _take_event(self, event: dict[str, Any]) -> None:
        self.events += 1
        now = self.now()
        if self.last_event_at is not None:
            self.gap_s = max(self.gap_s, now - self.last_event_at)
        self.last_event_at = now
        if "error" in event:
            self.error = event["error"]
            return
        index = event.get("index", 0)
        before = self.items.get(index)
        if before is not None:
            if before["meta_info"]["finish_reason"] is not None:
                self.complain(f"call {self.call.number}: choice {index} went on after its end")
            if event["output_ids"][: len(before["output_ids"])] != before["output_ids"]:
                self.complain(f"call {self.call.number}: choice {index} took back what it had said")
        self.items[index] = event


class Client:
    """Runs one `Call`."""

    def __init__(
        self, call: Call, gateways: Sequence[Process], trace: Trace, complain: Callable[[str], None], start: float
    ) -> None:
        self.call = call
        self.outcome = Outcome()
        self._gateways = gateways
        self._trace = trace
        self._complain = complain
        self._start = start
        self._name = f"client-{call.number}"

    async def run(self) -> None:
        """Call until there is an answer, or the client leaves."""
        await anyio.sleep_until(self._start + self.call.at)
        outcome = self.outcome
        while True:
            process = self._gateways[(self.call.number + outcome.tries) % len(self._gateways)]
            outcome.tries += 1
            began = anyio.current_time()
            self._trace.note(self._name, f"calls {process.name}")
            try:
                exchange = await self._try(process)
            except _Broken:
                outcome.broken += 1
                self._trace.note(self._name, "its connection broke")
                await anyio.sleep(PAUSE_S)
                continue
            outcome.longest_gap_s = max(outcome.longest_gap_s, exchange.gap_s)
            if outcome.left:
                self._trace.note(self._name, "leaves")
                return
            if exchange.error is None and exchange.done:
                self._keep(exchange)
                return
            self._judge(exchange, process, anyio.current_time() - began)
            await anyio.sleep(PAUSE_S)

    def _keep(self, exchange: _Exchange) -> None:
        for index, item in exchange.items.items():
            meta = item["meta_info"]
            logprobs = json.dumps([meta.get("output_token_logprobs"), meta.get("output_top_logprobs")])
            finish = json.dumps(meta["finish_reason"])
            self.outcome.answers[index] = Answer(item["text"], tuple(item["output_ids"]), finish, logprobs)
        self._trace.note(self._name, f"has its answer {[len(each.ids) for each in self.outcome.answers.values()]}")

    def _judge(self, exchange: _Exchange, process: Process, took_s: float) -> None:
        """A try that failed: as it may, or not."""
        self.outcome.refused += 1
        error = exchange.error or {"code": "none", "message": "the stream ended without an end"}
        told = f"{exchange.status} {error.get('code')}: {error.get('message')}"
        self._trace.note(self._name, f"is refused after {took_s:.2f} s: {told}")
        if process.draining_long:
            return  # it had its time to finish, and says that it stops
        if exchange.events or exchange.status not in (429, 503):
            self._complain(f"call {self.call.number} failed after it was accepted: {told}")
        elif took_s > REFUSED_WITHIN_S:
            self._complain(f"call {self.call.number} failed after {took_s:.1f} s: {told}")
        elif "retry-after" not in exchange.headers:
            self._complain(f"call {self.call.number} was refused without Retry-After: {told}")

    async def _try(self, process: Process) -> _Exchange:
        """One call. Raises `_Broken` if nobody listens, or the gateway dies meanwhile."""
        service = process.service
        if not process.running or service is None or not service.listening.is_set():
            raise _Broken
        exchange = _Exchange(self.call, self._complain, anyio.current_time)
        died = False

        async def watch() -> None:
            nonlocal died
            await process.gone.wait()
            died = True
            tasks.cancel_scope.cancel()

        async def leave(after_s: float) -> None:
            await anyio.sleep(after_s)
            self.outcome.left = True
            exchange.gone.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            if self.call.leaves_after_s is not None:
                tasks.start_soon(leave, self.call.leaves_after_s)
            await self._exchange(service.app, exchange)
            tasks.cancel_scope.cancel()
        if died and not exchange.done:
            raise _Broken
        return exchange

    async def _exchange(self, app: Any, exchange: _Exchange) -> None:
        body = json.dumps(self.call.body).encode()
        pending = [{"type": "http.request", "body": body, "more_body": False}]
        slow = self.call.reads_slowly_s

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop()
            await exchange.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal slow
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {key.decode(): value.decode() for key, value in message["headers"]}
                return
            exchange.take(message.get("body", b""))
            if not message.get("more_body", False):
                exchange.finish()
            if slow and exchange.events:
                pause, slow = slow, 0.0
                await anyio.sleep(pause)

        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/generate",
            "raw_path": b"/generate", "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"}, "extensions": {},
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        }  # fmt: skip
        await app(scope, receive, send)
