"""Hostile traffic on every subject with every role's credentials, while streams run: nothing ends, nothing changes, everything is counted."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import psutil
import pytest

from phloem.testing.forge import Forger, Heard, sender_of
from phloem.testing.insider import Insider
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions, Refused
from phloem_proto.codec import Sender
from phloem_proto.subjects import Role, replies

from .harness import Running, eventually, nothing_held, phloem

pytestmark = [pytest.mark.integration]

SEED = 20
RECORDED_PER_KIND = 48
"""Messages kept of one kind, from one role to another."""
BURST = 50
PAUSE_S = 0.02
"""Between bursts: some 2,000 messages a second, which services take in passing. This is no test of floods."""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 12}},
    "required": ["name", "numbers"],
}  # fmt: skip


def requests() -> list[dict[str, Any]]:
    """Eight streams, half of them constrained, drawn with seeds of their own."""
    made = []
    for number in range(8):
        sampling: dict[str, Any] = {
            "max_new_tokens": 48,
            "temperature": 0.7,
            "sampling_seed": number,
            "ignore_eos": number % 2 == 0,
        }
        if number % 4 == 1:
            sampling["regex"] = r"[a-z]{10,24}(, [0-9]{1,9}){1,3}"
        elif number % 4 == 3:
            sampling["json_schema"] = msgspec.json.encode(SCHEMA).decode()
        made.append({"text": f"Stream number {number} goes like this: ", "stream": True, "sampling_params": sampling})
    return made


@dataclass(frozen=True)
class Member:
    """A process of ours that is on the bus."""

    pid: int
    role: Role
    options: NatsOptions
    metrics_url: str


def members(running: Running) -> list[Member]:
    """All services that `phloem up` has started, with what they were told."""
    found = []
    for process in psutil.Process(running.process.pid).children():
        try:
            told = process.environ()
        except psutil.Error:
            continue  # it has just ended
        if "PHLOEM_NATS_USER" not in told or "phloem_" not in " ".join(process.cmdline()[:3]):
            continue
        role = Role(told["PHLOEM_NATS_USER"])
        password = Path(told["PHLOEM_NATS_PASSWORD_FILE"]).read_text()
        port = told.get("PHLOEM_METRICS_PORT")
        url = f"{running.url}/metrics" if port is None else f"http://127.0.0.1:{port}/metrics"
        options = NatsOptions(told["PHLOEM_NATS_URL"], user=role, password=password, inbox=replies(role, "forger"))
        found.append(Member(process.pid, role, options, url))
    return found


def refusals(members: Sequence[Member]) -> dict[Role, Counter[str]]:
    """`phloem_bus_refused_total` by role and reason."""
    counted = {}
    for member in members:
        text = httpx.get(member.metrics_url, timeout=10).text
        samples = re.findall(r'^phloem_bus_refused_total\{reason="(\w+)",role="\w+"\} (\S+)$', text, re.MULTILINE)
        counted[member.role] = Counter({reason: int(float(value)) for reason, value in samples})
    return counted


@asynccontextmanager
async def connections(members: Sequence[Member]) -> AsyncIterator[dict[Role, NatsBus]]:
    """A connection with the credentials of each role."""
    async with AsyncExitStack() as stack:
        made = {}
        for member in {member.role: member for member in members}.values():
            made[member.role] = await NatsBus.connect(member.options)
            stack.push_async_callback(made[member.role].aclose)
        yield made


class Recorder:
    """Hears everything: each role hears what is sent to it. Keeps some of each kind, and who is there."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.alive: dict[tuple[str, str], Sender] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def start_anew(self) -> None:
        """Who was there may be gone; what was heard is kept."""
        self.alive.clear()
        self._counts.clear()

    async def listen(self, bus: NatsBus, role: Role) -> None:
        async for message in await bus.subscribe(f"ph.*.*.{role}.>"):
            tree = msgspec.msgpack.decode(message.data)
            kind = (tree[2][0], tree[1][0], role)
            sender = sender_of(message.data)
            if kind[0] == "Beat":
                self.alive[sender.role, sender.instance] = sender
            self._counts[kind] += 1
            if self._counts[kind] <= RECORDED_PER_KIND:
                self.heard.append(Heard(*message))


async def stream(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """The text of one streamed generation."""
    text = ""
    async with client.stream("POST", f"{url}/generate", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = msgspec.json.decode(line[6:])
                assert "error" not in event, event
                text = event["text"]
    return text


class Attack:
    """One run: record, then forge while streams go on."""

    def __init__(self, running: Running, count: int, *, replaced: bool) -> None:
        self.running = running
        self.count = count
        self.replaced = replaced
        self.members = members(running)
        self.forbidden: Counter[Role] = Counter()
        self.allowed = 0
        self.kinds: Counter[str] = Counter()
        self.streamed = 0
        self.undisturbed: list[str] = []

    async def run(self) -> None:
        recorder = Recorder()
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=64)) as client:
            await self.record(client, recorder)
            over = anyio.Event()
            async with anyio.create_task_group() as tasks:
                for body, text in zip(requests(), self.undisturbed, strict=True):
                    tasks.start_soon(self.repeat, client, body, text, over)
                await self.forge(recorder)
                over.set()

    async def record(self, client: httpx.AsyncClient, recorder: Recorder) -> None:
        """Hear what goes on while all requests run undisturbed, twice."""
        async with connections(self.members) as ears, anyio.create_task_group() as tasks:
            for role, bus in ears.items():
                tasks.start_soon(recorder.listen, bus, role)
            await anyio.sleep(0.5)
            self.undisturbed = await self.streams(client)
            if self.replaced:
                await self.replace_worker()
                recorder.start_anew()
            assert self.undisturbed == await self.streams(client)
            await anyio.sleep(1.1)  # a list of live requests, and cancels
            tasks.cancel_scope.cancel()

    async def replace_worker(self) -> None:
        """Kill the worker; its successor is another instance with other sessions."""
        former = self.worker()
        assert former is not None
        os.kill(former, signal.SIGKILL)
        with anyio.fail_after(60):
            while self.worker() in (former, None):  # noqa: ASYNC110 - other processes
                await anyio.sleep(0.1)
            await anyio.sleep(1)  # by now the gateway knows that it is gone
            while not ready(self.running):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        self.members = members(self.running)

    def worker(self) -> int | None:
        """The worker's process."""
        return next((member.pid for member in members(self.running) if member.role is Role.WORKER), None)

    async def streams(self, client: httpx.AsyncClient) -> list[str]:
        """All requests at once; their texts."""
        texts = [""] * len(requests())

        async def one(number: int, body: dict[str, Any]) -> None:
            texts[number] = await stream(client, self.running.url, body)

        async with anyio.create_task_group() as tasks:
            for number, body in enumerate(requests()):
                tasks.start_soon(one, number, body)
        assert all(texts)
        return texts

    async def run_misuse(self) -> None:
        """Record, then say what roles may say while streams go on, whatever comes of these."""
        recorder = Recorder()
        rng = random.Random(SEED)
        async with httpx.AsyncClient(timeout=60) as client:
            await self.record(client, recorder)
            insider = Insider(rng, Forger(rng, recorder.heard, list(recorder.alive.values())))
            over = anyio.Event()
            async with connections(self.members) as buses, anyio.create_task_group() as tasks:
                for role, bus in buses.items():
                    tasks.start_soon(self.overhear, insider, bus, role)
                for body in requests():
                    tasks.start_soon(self.suffer, client, body, over)
                for number in range(self.count):
                    role = list(buses)[number % len(buses)]
                    said = insider.say(role)
                    await buses[role].publish(said.subject, said.data)
                    if number % BURST == BURST - 1:
                        await anyio.sleep(PAUSE_S)
                over.set()
                await anyio.sleep(1)
                tasks.cancel_scope.cancel()

    async def overhear(self, insider: Insider, bus: NatsBus, role: Role) -> None:
        async for message in await bus.subscribe(f"ph.*.*.{role}.>"):
            with suppress(msgspec.DecodeError, IndexError, TypeError):  # what we say ourselves comes back, too
                insider.hear(Heard(*message))

    async def suffer(self, client: httpx.AsyncClient, body: dict[str, Any], over: anyio.Event) -> None:
        """Streams that may fail, but in a proper way: with an error, not without an end."""
        while not over.is_set():
            async with client.stream("POST", f"{self.running.url}/generate", json=body) as reply:
                said = (await reply.aread()).decode()
            if reply.status_code == 200:
                assert said.rstrip().endswith("[DONE]"), said[-500:]
            else:
                assert "error" in said
                await anyio.sleep(0.05)

    async def streams_again(self) -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await self.streams(client)

    async def repeat(self, client: httpx.AsyncClient, body: dict[str, Any], text: str, over: anyio.Event) -> None:
        while not over.is_set():
            assert await stream(client, self.running.url, body) == text
            self.streamed += 1

    async def forge(self, recorder: Recorder) -> None:
        forger = Forger(random.Random(SEED), recorder.heard, list(recorder.alive.values()))
        async with connections(self.members) as attackers:
            for number in range(self.count):
                role = list(attackers)[number % len(attackers)]
                forgery = forger.forge(role)
                self.kinds[forgery.kind] += 1
                self.allowed += forgery.allowed
                self.forbidden[role] += not forgery.allowed
                await attackers[role].publish(forgery.subject, forgery.data, reply=forgery.reply)
                if number % BURST == BURST - 1:
                    await anyio.sleep(PAUSE_S)
            for role, attacker in attackers.items():
                await attacker.flush()
                assert attacker.violations == self.forbidden[role], role
                assert attacker.reconnections == 0


def ready(running: Running) -> bool:
    return httpx.get(f"{running.url}/health", timeout=10).status_code == 200


def attacked(running: Running, count: int, *, replaced: bool = False) -> None:
    attack = Attack(running, count, replaced=replaced)
    assert {member.role for member in attack.members} == set(Role)
    start = time.monotonic()
    anyio.run(attack.run)
    took = time.monotonic() - start
    assert set(members(running)) == set(attack.members), "a process ended"
    nothing_held(running, 40)  # beyond the deadline of requests
    assert ready(running)
    counted = refusals(attack.members)
    total: Counter[str] = sum(counted.values(), Counter())
    print(f"{count} messages in {took:.1f} s: {dict(attack.kinds)}")
    print(f"{attack.streamed} streams; refused: { {role.value: dict(reasons) for role, reasons in counted.items()} }")
    assert attack.streamed >= len(requests())
    assert total["failed"] == 0, total
    assert {"malformed", "sender", "reply", "session", "stale", "duplicate"} <= set(total), total
    assert count < 50_000 or {"numbers", "term", "incarnation"} <= set(total), total
    assert all(reasons["malformed"] and reasons["sender"] for reasons in counted.values())
    assert total.total() > attack.allowed / 2
    log = running.output()
    assert "Traceback" not in log, log[log.index("Traceback") - 2000 :]
    # The broker logs each violation, and the gateway each call: services must not log each message.
    ours = [line for line in log.splitlines() if not line.startswith(("nats-", "gateway-"))]
    assert len(ours) < 100 + count / 100, "\n".join(ours[-100:])


def environment() -> dict[str, str]:
    return {"PHLOEM_MODEL": "tiny", "PHLOEM_DTYPE": "float32", "PHLOEM_THREADS": "1", "PHLOEM_REQUEST_TIMEOUT": "30"}


@pytest.mark.timeout(120)
def test_five_thousand_hostile_messages_change_nothing() -> None:
    with phloem("up", env=environment()) as running:
        attacked(running, 5_000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_hostile_messages_change_nothing() -> None:
    """On a Phloem whose worker has been replaced, so that old sessions are among what is played back."""
    with phloem("up", env=environment()) as running:
        attacked(running, 100_000, replaced=True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_role_may_say_ends_no_process_and_is_over_when_it_stops() -> None:
    """A service that was taken over may cost its own requests. Everybody else's processes live on, and serve again once it is silent."""
    with phloem("up", env=environment()) as running:
        misused(running, 4_000)


def misused(running: Running, count: int) -> None:
    attack = Attack(running, count, replaced=False)
    anyio.run(attack.run_misuse)
    assert set(members(running)) == set(attack.members), "a process ended"
    eventually(lambda: ready(running), 60, "does not serve again")
    nothing_held(running, 120)
    texts = anyio.run(attack.streams_again)
    assert texts == attack.undisturbed


@pytest.mark.timeout(120)
def test_nobody_comes_in_without_a_password_or_from_outside_and_no_password_is_in_an_environment() -> None:
    with phloem("up", env=environment()) as running:
        there = members(running)
        for member in there:
            for options in (
                replace(member.options, password=""),
                replace(member.options, user=""),
                replace(member.options, password=there[0].options.password[::-1]),
            ):
                anyio.run(refused, options)
        passwords = {member.options.password for member in there}
        assert len(passwords) == len(Role)
        root = psutil.Process(running.process.pid)
        for process in [root, *root.children(recursive=True)]:
            said = " ".join([*process.cmdline(), *process.environ().values()])
            assert not any(password in said for password in passwords)
            listening = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            assert all(address.ip.endswith("127.0.0.1") for address in listening), (process.cmdline(), listening)


async def refused(options: NatsOptions) -> None:
    with anyio.fail_after(10), pytest.raises(Refused):
        await NatsBus.connect(options)
