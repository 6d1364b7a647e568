"""A client that costs next to nothing: opens streams at once on raw sockets and counts what comes out. A process of its own.

    python -m phloem.bench.overlap.client HOST PORT MODEL STREAMS TOKENS

Writes a line of JSON when all streams are under way, when the first ends and when all have ended; what they hold: see `_Count.line`. Imports
little and reads rarely, so that it keeps no core from those who are measured.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass

WARM_EVENTS = 20
"""Of each stream, before they count."""
PAUSE_S = 0.02
"""Between looks at the sockets: whatever came meanwhile is read at once."""
RECEIVE_BYTES = 1 << 18
SILENCE_S = 60.0
"""Longest time in which nothing comes."""
EVENT_END = b"\n\n"
LAST = b"data: [DONE]"
GOOD = b"HTTP/1.1 200"
BY_LENGTH = (b'"finish_reason":"length"', b'"finish_reason": "length"')
TAIL_BYTES = 1024


class Failed(Exception):
    """Raised when a stream is refused, breaks or ends early; one line."""


@dataclass(slots=True)
class Stream:
    """One answer as it comes in."""

    socket: socket.socket
    events: int = 0
    size: int = 0
    tail: bytes = b""
    """The end of what has come."""
    ended: bool = False

    def take(self, data: bytes) -> None:
        """Count. Raises `Failed`."""
        if not self.size and not data.startswith(GOOD):
            raise Failed(f"the gateway answers {data[:300]!r}")
        self.events += (self.tail[-1:] + data).count(EVENT_END)
        self.size += len(data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        if not self.ended and LAST in self.tail:
            self.events -= 1
            self.ended = True
            if not any(reason in self.tail for reason in BY_LENGTH):
                raise Failed(f"a stream ended otherwise than by its length: {self.tail!r}")


@dataclass(slots=True)
class Count:
    """All streams."""

    streams: list[Stream]

    def under_way(self) -> bool:
        return all(stream.events >= WARM_EVENTS for stream in self.streams)

    def one_ended(self) -> bool:
        return any(stream.ended for stream in self.streams)

    def all_ended(self) -> bool:
        return all(stream.ended for stream in self.streams)

    def line(self, what: str) -> str:
        """``at`` is on the clock that all processes share."""
        events, size = sum(one.events for one in self.streams), sum(one.size for one in self.streams)
        return json.dumps({"what": what, "at": time.perf_counter(), "events": events, "bytes": size})


def request(host: str, model: str, number: int, tokens: int) -> bytes:
    """The bytes that open a stream."""
    body = json.dumps(
        {
            "model": model,
            "prompt": f"Stream {number} of many:",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def run(host: str, port: int, model: str, count: int, tokens: int) -> None:
    """Open the streams and count until all have ended. Raises `Failed`, OSError."""
    selector = selectors.DefaultSelector()
    streams = []
    for number in range(count):
        opened = socket.create_connection((host, port), timeout=SILENCE_S)
        opened.sendall(request(host, model, number, tokens))
        opened.setblocking(False)
        streams.append(Stream(opened))
        selector.register(opened, selectors.EVENT_READ, streams[-1])
    counted = Count(streams)
    wanted = [("begin", counted.under_way), ("end", counted.one_ended), ("all", counted.all_ended)]
    while wanted:
        ready = selector.select(SILENCE_S)
        if not ready:
            raise Failed(f"nothing came for {SILENCE_S:g} s")
        for key, _ in ready:
            data = key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]
            if not data:
                raise Failed("the gateway closed a stream")
            key.data.take(data)
            if key.data.ended:
                selector.unregister(key.fileobj)
        while wanted and wanted[0][1]():
            print(counted.line(wanted.pop(0)[0]), flush=True)
        time.sleep(PAUSE_S)


def main() -> None:
    host, port, model, count, tokens = sys.argv[1:]
    try:
        run(host, int(port), model, int(count), int(tokens))
    except (Failed, OSError) as error:
        print(json.dumps({"what": "failed", "why": str(error)}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
