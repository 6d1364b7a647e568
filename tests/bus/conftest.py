"""Buses to test against: the local one under both backends, and NATS with a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .server import NatsServer
from .worlds import World


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server that tests share and leave running. Configured as ours is: 8 MiB payloads."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server that a test may stop, freeze and start again."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["local-asyncio", "local-trio", "nats"])
def world(request: pytest.FixtureRequest) -> World:
    """Each kind of bus in turn."""
    if request.param == "nats":
        server: NatsServer = request.getfixturevalue("nats_server")
        return World("asyncio", server.url)
    return World(request.param.removeprefix("local-"))
