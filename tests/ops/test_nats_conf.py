"""The broker's users, on a real nats-server with the configuration of the deployment: each may do its own part and no more."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
from phloem_bus.errors import ConfigError, NotAllowed, TimedOut
from phloem_bus.mailbox import Mailbox
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions, Refused
from phloem_proto.subjects import ALL, KV, Role, inbox, replies, subject
from tests.bus.certificates import Authority

pytestmark = pytest.mark.anyio

ROLES = list(Role)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """A nats-server and the passwords of its users."""

    def __init__(self, url: str, passwords: dict[str, str], tls_ca: Path | None = None) -> None:
        self.url = url
        self.passwords = passwords
        self._tls_ca = tls_ca

    def options(self, role: str) -> NatsOptions:
        inbox = replies(Role(role), f"{role}-1")
        return NatsOptions(self.url, user=role, password=self.passwords[role], tls_ca=self._tls_ca, inbox=inbox)

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
    with running_server(root, tools, tmp_path_factory.mktemp("nats")) as server:
        yield server


@contextlib.contextmanager
def running_server(root: Path, tools: Path, folder: Path, authority: Authority | None = None) -> Iterator[Server]:
    """Laid out as in the container, so that the configuration's includes are found; over TLS with an ``authority``."""
    passwords = generate([*(f"nats_password_{role}" for role in ROLES), "nats_passwords"])
    files = {"run/secrets/nats_passwords": passwords["nats_passwords"]}
    for name in ("nats.conf", "nats-tls.conf"):
        there = (root / "deploy" / name).read_text()
        files[f"etc/nats/{name}"] = there.replace('"/run/secrets', f'"{folder}/run/secrets')
    if authority is not None:
        certificate, key = authority.sign("nats", "DNS:nats,IP:127.0.0.1")
        files |= {"run/secrets/nats_tls_cert": certificate.read_text(), "run/secrets/nats_tls_key": key.read_text()}
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    ports = Ports()
    port, http_port = ports.near(14222), ports.near(18222)
    program = shutil.which("nats-server") or str(tools / "nats-server")
    config = folder / "etc/nats" / ("nats.conf" if authority is None else "nats-tls.conf")
    process = subprocess.Popen(
        [program, "--config", str(config), "--addr", "127.0.0.1", "--port", str(port), "--http_port", str(http_port)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    scheme = "nats" if authority is None else "tls"
    try:
        yield Server(
            f"{scheme}://127.0.0.1:{port}",
            {role: passwords[f"nats_password_{role}"] for role in ROLES},
            authority.certificate if authority is not None else None,
        )
    finally:
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
        await grammar.flush()  # with its answer comes the broker's complaint
        assert grammar.violations == 1


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_speaks_to_everybody_under_its_own_name_and_under_no_other(server: Server, role: Role) -> None:
    async with contextlib.AsyncExitStack() as stack:
        mailboxes = {}
        for receiver in ROLES:
            bus = await stack.enter_async_context(server.user(receiver))
            mailboxes[receiver] = await bus.subscribe(f"ph.*.*.{receiver}.>")
        sender = await stack.enter_async_context(server.user(role))
        forbidden = 0
        for receiver, instance, name in itertools.product(ROLES, ("one", ALL, KV), ROLES):
            await sender.publish(subject("default", "m", receiver, instance, name), name.encode())
            forbidden += name is not role
        for receiver in ROLES:  # shapes that no pattern of ours has
            for odd in ("ph.default.m.{}.one", "ph.default.m.{}.one.x.{}", "default.m.{}.one.{}", "ph.m.{}.one.{}"):
                await sender.publish(odd.format(receiver, role), b"odd")
                forbidden += 1
        await sender.flush()
        assert sender.violations == forbidden
        assert sender.connected
        for mailbox in mailboxes.values():
            with anyio.fail_after(5):
                assert [(await mailbox.receive()).data for _ in range(3)] == [role.encode()] * 3
            with pytest.raises(anyio.WouldBlock):
                mailbox.receive_nowait()


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_hears_what_is_sent_to_it_and_nothing_else(server: Server, role: Role) -> None:
    async with server.user(role) as bus:
        for other in ROLES:
            patterns = [
                inbox("default", "m", other, "one"), inbox("default", "m", other, ALL), inbox("default", "m", other, KV),
                f"ph.*.*.{other}.>", f"{replies(other, 'x')}.>", f"_INBOX_{other}.>", f"_INBOX_{other}.x.0.0",
            ]  # fmt: skip
            for pattern in patterns:
                if other is role:
                    await (await bus.subscribe(pattern)).aclose()
                else:
                    with pytest.raises(NotAllowed):
                        await bus.subscribe(pattern)
        assert bus.connected


async def test_an_answer_goes_to_the_inbox_that_was_given_and_once(server: Server) -> None:
    async with server.user("gateway") as gateway, server.user("tokenizer") as tokenizer:
        there = await tokenizer.subscribe(inbox("default", "m", Role.TOKENIZER, "one"))
        given = f"{replies(Role.GATEWAY, 'gateway-1')}.given"
        mine = await gateway.subscribe(f"{replies(Role.GATEWAY, 'gateway-1')}.*")
        await gateway.publish(subject("default", "m", Role.TOKENIZER, "one", Role.GATEWAY), b"?", reply=given)
        await there.receive()
        for target, data in ((given, b"yes"), (given, b"again"), (given[:-1] + "m", b"beside")):
            await tokenizer.publish(target, data)
        await tokenizer.flush()
        assert tokenizer.violations == 2
        await gateway.flush()
        with anyio.fail_after(5):
            assert (await mine.receive()).data == b"yes"
        with pytest.raises(anyio.WouldBlock):
            mine.receive_nowait()


async def test_the_same_users_over_tls(root: Path, tools: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    with running_server(root, tools, tmp_path / "server", authority) as server:
        async with server.user("scheduler") as scheduler:
            await scheduler.publish(subject("default", "m", Role.WORKER, "one", Role.GATEWAY), b"forged")
            await scheduler.flush()
            assert scheduler.violations == 1
        assert running.inspect(server.url) == Broker(server.url, wants_password=True)
        assert running.inspect(server.url.replace("tls:", "nats:")) == Broker(server.url, wants_password=True)
        with anyio.fail_after(10), pytest.raises(ConfigError):
            await NatsBus.connect(dataclasses.replace(server.options("gateway"), tls_ca=None))


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
