"""Async tests run under asyncio, and under trio with a clock that jumps ahead whenever everybody waits."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from phloem_scheduler import service


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, {"clock": MockClock(autojump_threshold=0)} if request.param == "trio" else {}


@pytest.fixture(autouse=True)
def _listen_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else leads in most tests, so a scheduler need not listen for long before it does."""
    monkeypatch.setattr(service, "LISTEN_S", 0.3)
