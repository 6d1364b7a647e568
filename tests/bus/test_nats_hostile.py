"""What any client may put around a message - reply subjects and headers of any bytes - costs nobody else the connection."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest

from phloem_bus.bus import RawMessage
from phloem_bus.errors import NoResponders
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions

from .server import NatsServer

HEADERS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 503 \xff\xfe\r\n\r\n",
    b"NATS/1.0 100\r\n\xff: \xfe\r\n\r\n",
    b"NATS/1.0\r\na: b\r\nc\r\n: d\r\n\xff\xfe: x\r\n\r\n",
    b"NATS/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    b"\0" * 64,
    b"x",
]
REPLIES = [
    b"\xff\xfe",
    b"a.\x80",
    b"a\x0bb",
    b"\x0c",
    b"a\x1cb\x1d",
    b"7\x0b7",
    b"a\x00b",
    b"*",
    b">",
    b"\xc2\xa0",
    b"x" * 3000,
]


@pytest.mark.parametrize("uvloop", [True, False])
def test_no_headers_and_no_reply_subject_break_the_reader(nats_server: NatsServer, uvloop: bool) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            bus = await NatsBus.connect(NatsOptions(nats_server.url))
            client = bus._client
            subscription = await bus.subscribe("hostile.*")
            reader, writer = await asyncio.open_connection("127.0.0.1", nats_server.port)
            writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}\r\n')
            sent = 0
            for headers in HEADERS:
                for body in (b"", b"true"):
                    writer.write(
                        b"HPUB hostile.h %d %d\r\n%b%b\r\n" % (len(headers), len(headers) + len(body), headers, body)
                    )
                    sent += 1
            for reply in REPLIES:
                writer.write(b"PUB hostile.r %b 4\r\ntrue\r\n" % reply)
                writer.write(b"HPUB hostile.r %b 12 16\r\nNATS/1.0\r\n\r\ntrue\r\n" % reply)
                sent += 2
            for subject in (b"hostile.\xff", b"hostile.a\x0bb"):
                writer.write(b"PUB %b 4\r\ntrue\r\n" % subject)
                sent += 1
            writer.write(b"PUB hostile.last 4\r\nlast\r\n")
            await writer.drain()
            heard: list[RawMessage] = []
            with anyio.fail_after(10):
                while not heard or heard[-1].data != b"last":
                    heard.append(await subscription.receive())
            assert len(heard) == sent + 1
            assert {message.data for message in heard[:-1]} == {b"", b"true"}
            with pytest.raises(NoResponders):  # the server's own word is still understood
                await bus.request("nobody", b"?", timeout=5)
            assert bus.connected
            assert bus._client is client
            assert bus.reconnections == 0
            writer.close()
            await writer.wait_closed()
            del reader
            await bus.aclose()

    anyio.run(main, backend_options={"use_uvloop": uvloop})
    gc.collect()


def test_who_has_seen_one_inbox_can_not_tell_the_next(nats_server: NatsServer) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            bus = await NatsBus.connect(NatsOptions(nats_server.url, inbox="_INBOX_gateway.g"))
            heard = await bus.subscribe("question")
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(ask, bus)
                replies = []
                for _ in range(20):
                    message = await heard.receive()
                    assert message.reply is not None
                    replies.append(message.reply)
                    await bus.publish(message.reply, b"answer")
            assert len({reply.rpartition(".")[0] for reply in replies}) == 1
            tokens = [reply.rpartition(".")[2] for reply in replies]
            assert len(set(tokens)) == 20
            assert all(len(token) == 16 for token in tokens)
            await bus.aclose()

    async def ask(bus: NatsBus) -> None:
        assert await bus.request("question", b"?", timeout=5) == b"answer"

    anyio.run(main, backend_options={"use_uvloop": True})
