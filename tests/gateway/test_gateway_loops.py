"""The application is anyio only: a simulation runs it under trio, and equal seeds give equal bytes."""

from __future__ import annotations

import json

import anyio
import pytest

from .backend import MODEL
from .world import Caller, events, world

STREAM = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2}).encode()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_application_runs_under_both_event_loops(backend: str) -> None:
    async def main() -> None:
        async with world() as made:
            caller = Caller(made.service.app)
            await caller.call("/v1/chat/completions", STREAM)
            assert events(caller.text)[-1]["choices"][0]["finish_reason"] == "stop"

    anyio.run(main, backend=backend)
