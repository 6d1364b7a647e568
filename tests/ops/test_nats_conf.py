"""The broker's users, on a real nats-server with the configuration of the deployment: each may do its own part and no more."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from phloem.up import broker as running
from phloem.up.errors import BrokerMissing
from phloem.up.plan import Broker
from phloem.up.ports import Ports
from phloem.up.secrets import generate
from phloem_bus.errors import NotAllowed, TimedOut
from phloem_bus.mailbox import Mailbox
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions, Refused
from phloem_proto.subjects import KV, Role, inbox, subject

pytestmark = pytest.mark.anyio

ROLES = list(Role)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """A nats-server and the passwords of its users."""

    def __init__(self, url: str, passwords: dict[str, str]) -> None:
        self.url = url
        self.passwords = passwords

    def options(self, role: str) -> NatsOptions:
        return NatsOptions(url=self.url, user=role, password=self.passwords[role], inbox=f"_INBOX_{role}.{role}-1")

    @asynccontextmanager
    async def user(self, role: str) -> AsyncIterator[NatsBus]:
        with anyio.fail_after(10):
            bus = await NatsBus.connect(self.options(role))
        try:
            yield bus
        finally:
            await bus.aclose()


@pytest.fixture(scope="module")
def server(root: Path, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Laid out as in the container, so that the configuration's include is found."""
    folder = tmp_path_factory.mktemp("nats")
    values = generate([*(f"nats_password_{role}" for role in ROLES), "nats_passwords"])
    for path, content in {
        "etc/nats/nats.conf": (root / "deploy/nats.conf").read_text(),
        "run/secrets/nats_passwords": values["nats_passwords"],
    }.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(content)
    ports = Ports()
    port, http_port = ports.near(14222), ports.near(18222)
    program = shutil.which("nats-server") or str(tools / "nats-server")
    command = [program, "--config", str(folder / "etc/nats/nats.conf"), "--addr", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--http_port", str(http_port)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield Server(f"nats://127.0.0.1:{port}", {role: values[f"nats_password_{role}"] for role in ROLES})
    process.kill()
    process.wait(10)


async def answer_once(bus: NatsBus, mailbox: Mailbox) -> None:
    message = await mailbox.receive()
    assert message.reply is not None
    await bus.publish(message.reply, b"yes")


async def violated(bus: NatsBus) -> None:
    """Return once the broker has complained."""
    with anyio.fail_after(5):
        while not bus.violations:  # noqa: ASYNC110 - a counter, no event
            await anyio.sleep(0.01)


async def test_every_role_reaches_every_other_and_gets_replies(server: Server) -> None:
    for receiver in ROLES:
        async with server.user(receiver) as there:
            mailbox = await there.subscribe(inbox("default", "m", receiver, "one"))
            for sender in ROLES:
                async with server.user(sender) as here, anyio.create_task_group() as group:
                    group.start_soon(answer_once, there, mailbox)
                    target = subject("default", "m", receiver, "one", sender)
                    assert await here.request(target, b"?", timeout=5.0) == b"yes"


async def test_nobody_speaks_under_another_name(server: Server) -> None:
    async with server.user("scheduler") as scheduler, server.user("grammar") as grammar:
        mailbox = await scheduler.subscribe(inbox("default", "m", Role.SCHEDULER, "one"))
        await grammar.publish(subject("default", "m", Role.SCHEDULER, "one", Role.GATEWAY), b"forged")
        await grammar.publish(subject("default", "m", Role.SCHEDULER, "one", Role.GRAMMAR), b"true")
        with anyio.fail_after(5):
            assert (await mailbox.receive()).data == b"true"
        assert grammar.violations == 1


@pytest.mark.parametrize(
    "pattern", ["ph.>", "ph.*.*.worker.>", "_INBOX_gateway.>", "_INBOX.>", ">", "$SYS.>", "ph.Prod.Llama.worker.W-1.*"]
)
async def test_nobody_listens_to_others(server: Server, pattern: str) -> None:
    async with server.user("tokenizer") as tokenizer:
        with pytest.raises(NotAllowed):
            await tokenizer.subscribe(pattern)


async def test_cache_events_reach_gateways_alone(server: Server) -> None:
    group = inbox("default", "m", Role.GATEWAY, KV)
    async with (
        server.user("scheduler") as scheduler,
        server.user("gateway") as gateway,
        server.user("worker") as worker,
    ):
        mailbox = await gateway.subscribe(group)
        await worker.publish(subject("default", "m", Role.GATEWAY, KV, Role.SCHEDULER), b"forged")
        await violated(worker)
        await scheduler.publish(subject("default", "m", Role.GATEWAY, KV, Role.SCHEDULER), b"true")
        with anyio.fail_after(5):
            assert (await mailbox.receive()).data == b"true"
    async with server.user("worker") as worker:
        with pytest.raises(NotAllowed):
            await worker.subscribe(group)


async def test_nobody_writes_to_an_inbox_that_did_not_ask(server: Server) -> None:
    async with server.user("grammar") as grammar:
        await grammar.publish("_INBOX_gateway.gateway-1.0.1", b"forged")
        await violated(grammar)


async def test_a_request_to_a_role_that_ignores_it_times_out(server: Server) -> None:
    async with server.user("gateway") as gateway, server.user("tokenizer") as tokenizer:
        await tokenizer.subscribe(inbox("default", "m", Role.TOKENIZER, "one"))
        with pytest.raises(TimedOut):
            await gateway.request(subject("default", "m", Role.TOKENIZER, "one", Role.GATEWAY), b"?", timeout=0.1)


async def test_a_wrong_password_and_a_stranger_are_refused(server: Server) -> None:
    true = server.options("gateway")
    for options in (dataclasses.replace(true, password="guess"), dataclasses.replace(true, user="root")):
        with anyio.fail_after(10), pytest.raises(Refused):
            await NatsBus.connect(options)


def test_a_running_broker_is_recognised(server: Server) -> None:
    assert running.inspect(server.url) == Broker(server.url, wants_password=True)


def test_what_is_no_broker_is_one_line() -> None:
    with pytest.raises(BrokerMissing, match=r"no broker at 127\.0\.0\.1:1 "):
        running.inspect("nats://127.0.0.1:1")
