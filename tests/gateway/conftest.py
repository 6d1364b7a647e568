"""One world per module for tests that only read or that reset it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from phloem_gateway.config import GatewayConfig

from .cache_backend import FakeCache
from .grpc_client import Client
from .openai_schemas import relaxed
from .world import World, world


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def _shared_world() -> AsyncIterator[World]:
    async with world(GatewayConfig(http_port=None, grpc_port=0, max_body_bytes=100_000, max_choices=8)) as made:
        yield made


@pytest.fixture
def shared(_shared_world: World) -> World:
    """A world that other tests of the module have used; its fakes are reset."""
    _shared_world.backend.reset()
    return _shared_world


@pytest.fixture(scope="module")
async def _shared_cache(_shared_world: World) -> FakeCache:
    return FakeCache.attach(_shared_world.backend.scheduler)


@pytest.fixture
def cache(shared: World, _shared_cache: FakeCache) -> FakeCache:
    """The cache side of the shared world's scheduler, reset."""
    _shared_cache.reset()
    return _shared_cache


@pytest.fixture(scope="module")
async def client(_shared_world: World) -> AsyncIterator[Client]:
    """A gRPC client of the shared world."""
    assert _shared_world.service.grpc_port is not None
    made = await Client.connect(_shared_world.service.grpc_port)
    yield made
    await made.close()


@pytest.fixture(scope="session")
def schemas() -> dict[str, Any]:
    """OpenAI's description of replies."""
    return relaxed()
