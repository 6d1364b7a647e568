"""Measured traps of NATS and nats-py, one test each: what a service relies on when the broker misbehaves."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from phloem_bus.errors import ConfigError, Disconnected, NotAllowed, PayloadTooLarge, TimedOut
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions, Refused

from .server import NatsServer


def run(test: Callable[[], Awaitable[None]], *, uvloop: bool = True) -> None:
    async def main() -> None:
        with anyio.fail_after(40):
            await test()

    anyio.run(main, backend_options={"use_uvloop": uvloop})
    gc.collect()  # sockets and tasks that were left behind would warn here


@asynccontextmanager
async def connected(options: NatsOptions) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(options)
    try:
        yield bus
    finally:
        await bus.aclose()


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - states of a library, which tells nobody
            await anyio.sleep(0.01)


async def flood(bus: NatsBus) -> None:
    """More than a server that takes nothing, the kernel and our own limit hold together."""
    for _ in range(64):
        await bus.publish("s", bytes(1024 * 1024))


def test_after_a_restart_subscriptions_are_back_and_no_stale_burst_comes(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as receiver, connected(NatsOptions(server.url)) as sender:
            subscription = await receiver.subscribe("s")
            before = sender.connected_since
            server.stop()
            await until(lambda: not sender.connected and not receiver.connected)
            for _ in range(100):
                with pytest.raises(Disconnected):
                    await sender.publish("s", b"stale")
            with pytest.raises(Disconnected):
                await sender.request("s", b"stale", timeout=5)
            with pytest.raises(Disconnected):
                await sender.flush()
            server.start()
            await until(lambda: sender.connected and receiver.connected)
            assert sender.connected_since > before
            await sender.publish("s", b"fresh")
            with anyio.fail_after(5):
                assert (await subscription.receive()).data == b"fresh"

    run(test)


def test_a_reply_finds_a_request_that_was_made_before_a_restart(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as client, connected(NatsOptions(server.url)) as helper:
            subscription = await helper.subscribe("s")
            replies: list[bytes] = []

            async def ask() -> None:
                replies.append(await client.request("s", b"", timeout=20))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                message = await subscription.receive()
                server.stop()
                await until(lambda: not client.connected and not helper.connected)
                server.start()
                await until(lambda: client.connected and helper.connected)
                assert message.reply is not None
                await helper.publish(message.reply, b"late")
            assert replies == [b"late"]

    run(test)


def test_a_frozen_server_is_noticed_within_seconds(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as bus:
            await bus.subscribe("s")
            server.freeze()
            try:
                await until(lambda: not bus.connected, 6.0)
                with pytest.raises(Disconnected):
                    await bus.publish("s", b"")
            finally:
                server.thaw()
            await until(lambda: bus.connected)

    run(test)


def test_closing_does_not_wait_for_a_frozen_server(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as bus:
            server.freeze()
            try:
                for _ in range(8):
                    await bus.publish("s", bytes(1024 * 1024))
                with anyio.fail_after(5):
                    await bus.aclose()
            finally:
                server.thaw()

    run(test)


def test_a_server_that_takes_nothing_makes_publishing_fail_instead_of_buffering(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as bus:
            server.freeze()
            try:
                with anyio.fail_after(5), pytest.raises(Disconnected):
                    await flood(bus)
                with anyio.fail_after(0.1), pytest.raises(Disconnected):
                    await bus.publish("s", b"")
            finally:
                server.thaw()
            await until(lambda: bus.connected)

    run(test)


def test_a_stalled_publish_can_be_cancelled(own_nats_server: NatsServer) -> None:
    server = own_nats_server

    async def test() -> None:
        async with connected(NatsOptions(server.url)) as bus:
            server.freeze()
            try:
                with anyio.fail_after(2), anyio.move_on_after(0.3) as scope:
                    await flood(bus)
                assert scope.cancelled_caught
            finally:
                server.thaw()

    run(test)


def test_a_client_that_the_server_threw_out_is_rebuilt_with_its_subscriptions(nats_server: NatsServer) -> None:
    async def test() -> None:
        async with connected(NatsOptions(nats_server.url)) as bus, connected(NatsOptions(nats_server.url)) as other:
            subscription = await bus.subscribe("thrown.out")
            client = bus._client
            assert client is not None
            # A payload over the limit makes the server close the connection; nats-py would stay closed for good.
            await client._send_command(b"PUB x 9000000\r\n")
            await client._flush_pending()
            await until(lambda: bus.reconnections == 1 and bus.connected)
            await other.publish("thrown.out", b"here")
            with anyio.fail_after(5):
                assert (await subscription.receive()).data == b"here"

    run(test)


def test_a_reader_that_broke_is_noticed_and_replaced(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with connected(NatsOptions(nats_server.url)) as bus:
            subscription = await bus.subscribe("reader.broke")
            client = bus._client
            assert client is not None

            async def fail(_: bytes) -> None:
                raise RuntimeError("a bug in the parser")  # nats-py logs it, stops reading, and stays "connected"

            monkeypatch.setattr(client._ps, "parse", fail)
            await until(lambda: bus.reconnections == 1 and bus.connected, 8.0)
            await bus.publish("reader.broke", b"here")
            with anyio.fail_after(5):
                assert (await subscription.receive()).data == b"here"

    run(test)


def test_payload_at_the_limit_keeps_the_connection(nats_server: NatsServer) -> None:
    async def test() -> None:
        async with connected(NatsOptions(nats_server.url)) as bus:
            client = bus._client
            with pytest.raises(PayloadTooLarge):
                await bus.publish("s", bytes(bus.max_payload + 1))
            await bus.publish("s", bytes(bus.max_payload), reply="a.reply")
            await bus.flush()
            assert bus._client is client
            assert bus.connected

    run(test)


def test_connecting_waits_for_the_broker_and_says_so_once(own_nats_server: NatsServer) -> None:
    server = own_nats_server
    server.stop()

    async def test() -> None:
        said: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def start_later() -> None:
                await anyio.sleep(0.5)
                await anyio.to_thread.run_sync(server.start)

            tasks.start_soon(start_later)
            bus = await NatsBus.connect(NatsOptions(server.url), on_wait=said.append)
        assert len(said) == 1
        assert server.url in said[0]
        await bus.aclose()

    run(test)


USERS = """
authorization { users: [
  { user: gateway, password: secret, permissions: {
      publish: { allow: ["ph.*.*.*.*.gateway"] }
      subscribe: { allow: ["ph.*.*.gateway.>", "_INBOX_gateway.>"] }
      allow_responses: { max: 1, ttl: "1m" } } }
  { user: worker, password: secret, permissions: {
      publish: { allow: ["ph.*.*.*.*.worker"] }
      subscribe: { allow: ["ph.*.*.worker.>", "_INBOX_worker.>"] }
      allow_responses: { max: 1, ttl: "1m" } } }
] }
"""


@pytest.fixture
def strict_server(tmp_path: Path) -> Any:
    server = NatsServer(tmp_path, USERS)
    server.start()
    yield server
    server.stop()


def options(server: NatsServer, role: str, password: str = "secret") -> NatsOptions:
    return NatsOptions(server.url, user=role, password=password, inbox=f"_INBOX_{role}.one")


def test_users_with_least_privilege_can_call_and_nothing_else(strict_server: NatsServer) -> None:
    async def test() -> None:
        async with (
            connected(options(strict_server, "gateway")) as gateway,
            connected(options(strict_server, "worker")) as worker,
        ):
            client = gateway._client
            inbox = await worker.subscribe("ph.d.m.worker.w1.*")

            async def answer() -> None:
                message = await inbox.receive()
                assert message.reply is not None
                await worker.publish(message.reply, b"yes")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer)
                assert await gateway.request("ph.d.m.worker.w1.gateway", b"?", timeout=5) == b"yes"

            # What is not allowed fails by itself and costs nobody the connection.
            await gateway.publish("ph.d.m.worker.w1.scheduler", b"forged")
            for forbidden in ("_INBOX_worker.>", "ph.D.M.worker.W-1.*", "ph.d.m.WORKER.w1", "ph.d.m.worker.'~{}"):
                with pytest.raises(NotAllowed):
                    await gateway.subscribe(forbidden)
                with pytest.raises(NotAllowed):
                    await gateway.subscribe(forbidden, queue="Q")
            with pytest.raises(TimedOut):
                await gateway.request("ph.d.m.worker.w1.scheduler", b"forged", timeout=0.2)
            with pytest.raises(anyio.WouldBlock):
                inbox.receive_nowait()
            assert gateway.violations >= 3
            assert gateway.connected
            assert gateway._client is client

    run(test)


def test_a_wrong_password_is_said_at_once(strict_server: NatsServer) -> None:
    async def test() -> None:
        with anyio.fail_after(5), pytest.raises(Refused, match=r"(?i)authorization violation"):
            await NatsBus.connect(options(strict_server, "gateway", "wrong"))

    run(test)


@pytest.mark.parametrize(
    "url", ["localhost:4222", "http://localhost:4222", "nats://", "nats://x:99999", "nats://user:secret@host:4222", ""]
)
def test_a_url_that_is_none_is_a_setting_error(url: str) -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match="--nats-url"):
            await NatsBus.connect(NatsOptions(url))

    run(test)


def test_a_certificate_file_that_is_none_is_a_setting_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    async def test() -> None:
        for path in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
            with pytest.raises(ConfigError, match="--nats-tls-ca"):
                await NatsBus.connect(NatsOptions("tls://127.0.0.1:4222", tls_ca=path))

    run(test)
