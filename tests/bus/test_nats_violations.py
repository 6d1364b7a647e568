"""What the broker does not let a service say or hear is seen by the service: counted, logged once per subject, and nothing ends."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from phloem_bus.errors import NotAllowed
from phloem_bus.metrics import NodeCollector
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions
from phloem_bus.node import Node
from phloem_proto.subjects import Role

from .server import NatsServer

USERS = """
authorization { users: [
  { user: worker, password: secret, permissions: {
      publish: { allow: ["ph.*.*.*.*.worker"] }
      subscribe: { allow: ["ph.*.*.worker.>", "_INBOX_worker.>"] } } }
] }
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path, USERS)
    made.start()
    yield made
    made.stop()


def test_violations_are_counted_logged_once_per_subject_and_end_nothing(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "phloem.bus")

    async def main() -> None:
        with anyio.fail_after(30):
            bus = await NatsBus.connect(
                NatsOptions(server.url, user="worker", password="secret", inbox="_INBOX_worker.w")
            )
            registry = CollectorRegistry()
            node = Node(
                bus, role=Role.WORKER, instance="w", incarnation=1, namespace="d", model="m", rng=random.Random(0)
            )
            registry.register(NodeCollector(node))
            client = bus._client
            mine = await bus.subscribe("ph.d.m.worker.w.*")

            def counted() -> float | None:
                return registry.get_sample_value("phloem_bus_violations_total", {"role": "worker"})

            assert counted() == 0
            for subject in ("ph.d.m.worker.w.scheduler", "ph.d.m.scheduler.s.gateway", "_INBOX_gateway.g.0.0"):
                for _ in range(10):
                    await bus.publish(subject, b"forged")
            with pytest.raises(NotAllowed):
                await bus.subscribe("ph.d.m.scheduler.>")
            await bus.flush()
            assert counted() == 31
            await bus.publish("ph.d.m.worker.w.worker", b"true")
            assert (await mine.receive()).data == b"true"
            assert bus.connected
            assert bus._client is client
            await bus.aclose()

    anyio.run(main, backend_options={"use_uvloop": True})
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the broker forbids this user a publish to ph.d.m.worker.w.scheduler",
        "the broker forbids this user a publish to ph.d.m.scheduler.s.gateway",
        "the broker forbids this user a publish to _inbox_gateway.g.0.0",
        "the broker forbids this user a subscription to ph.d.m.scheduler.>",
    ]
