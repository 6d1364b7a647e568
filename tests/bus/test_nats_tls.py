"""TLS to a real nats-server: what is asked for is had or nothing is said, and why it can't be had is one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from phloem_bus.errors import ConfigError
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions

from .certificates import Authority
from .server import NatsServer


def tls(authority: Authority, alternative: str = "IP:127.0.0.1", *, verify: bool = False) -> str:
    """Lines of a server's configuration, with a certificate for ``alternative``."""
    certificate, key = authority.sign("server", alternative)
    lines = [f'cert_file: "{certificate}"', f'key_file: "{key}"', "timeout: 3"]
    if verify:
        lines += [f'ca_file: "{authority.certificate}"', "verify: true"]
    return "\n".join(["tls {", *lines, "}"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("trusted") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which signed nothing of the server's."""
    return Authority(tmp_path_factory.mktemp("stranger") / "ca")


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    yield from started(tmp_path_factory.mktemp("tls"), tls(authority))


def started(folder: Path, extra: str) -> Iterator[NatsServer]:
    made = NatsServer(folder, extra)
    made.start()
    yield made
    made.stop()


def run(test: Callable[[], Awaitable[None]], *, uvloop: bool = True) -> None:
    async def main() -> None:
        with anyio.fail_after(30):
            await test()

    anyio.run(main, backend_options={"use_uvloop": uvloop})


async def echoes(options: NatsOptions) -> None:
    bus = await NatsBus.connect(options)
    try:
        subscription = await bus.subscribe("s")
        await bus.publish("s", bytes(1024 * 1024))
        with anyio.fail_after(5):
            assert len((await subscription.receive()).data) == 1024 * 1024
    finally:
        await bus.aclose()


@pytest.mark.parametrize("scheme", ["tls", "nats"])
@pytest.mark.parametrize("uvloop", [True, False])
def test_messages_travel_encrypted(server: NatsServer, authority: Authority, scheme: str, uvloop: bool) -> None:
    options = NatsOptions(f"{scheme}://127.0.0.1:{server.port}", tls_ca=authority.certificate)
    run(lambda: echoes(options), uvloop=uvloop)


def refusal(options: NatsOptions) -> ConfigError:
    """What connecting says at once."""
    caught: list[ConfigError] = []

    async def test() -> None:
        with anyio.fail_after(10), pytest.raises(ConfigError) as error:
            await NatsBus.connect(options)
        caught.append(error.value)

    run(test)
    assert "\n" not in str(caught[0])
    return caught[0]


def test_a_broker_of_another_authority_is_not_trusted(
    server: NatsServer, authority: Authority, stranger: Authority
) -> None:
    url = f"tls://127.0.0.1:{server.port}"
    for ca in (stranger.certificate, None):  # None: whom this system trusts
        error = refusal(NatsOptions(url, tls_ca=ca))
        assert error.setting == "--nats-tls-ca"
        assert f"the broker at {url} is not trusted" in error.message


def test_a_broker_that_only_speaks_tls_is_not_waited_for_in_vain(server: NatsServer) -> None:
    assert refusal(NatsOptions(server.url)).setting == "--nats-tls-ca"


def test_a_certificate_for_another_host_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    for other in started(tmp_path, tls(authority, "DNS:elsewhere.example")):
        error = refusal(NatsOptions(f"tls://127.0.0.1:{other.port}", tls_ca=authority.certificate))
        assert (error.setting, "127.0.0.1" in error.message) == ("--nats-tls-ca", True)


def test_nothing_is_said_to_a_broker_without_tls(authority: Authority, tmp_path: Path) -> None:
    """The password least of all: whoever answers in the broker's place would have it."""
    for plain in started(tmp_path, "debug: true\ntrace: true\n"):
        for options in (
            NatsOptions(f"tls://127.0.0.1:{plain.port}", user="u", password="hidden"),
            NatsOptions(plain.url, user="u", password="hidden", tls_ca=authority.certificate),
        ):
            assert refusal(options).setting == "--nats-url"
        assert "CONNECT" not in (tmp_path / "nats.log").read_text()


def test_a_broker_that_asks_for_a_certificate_gets_ours(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("client", "DNS:gateway")
    for strict in started(tmp_path, tls(authority, verify=True)):
        url = f"tls://127.0.0.1:{strict.port}"
        ours = NatsOptions(url, tls_ca=authority.certificate, tls_cert=certificate, tls_key=key)
        run(lambda ours=ours: echoes(ours))  # type: ignore[misc]
        assert refusal(NatsOptions(url, tls_ca=authority.certificate)).setting == "--nats-tls-cert"


def test_a_service_over_tls_survives_a_broker_that_is_not_trusted_for_a_while(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """At the start it is a setting's fault; later it may be an attack, and is waited out."""
    server = NatsServer(tmp_path, tls(authority))
    false = NatsServer(tmp_path, tls(stranger))
    false.port = server.port
    server.start()

    async def test() -> None:
        bus = await NatsBus.connect(NatsOptions(f"tls://127.0.0.1:{server.port}", tls_ca=authority.certificate))
        server.stop()
        await until(lambda: not bus.connected)
        await anyio.to_thread.run_sync(false.start)
        await anyio.sleep(0.5)
        assert not bus.connected
        false.stop()
        await anyio.to_thread.run_sync(server.start)
        await until(lambda: bus.connected)
        await bus.aclose()

    try:
        run(test)
    finally:
        server.stop()
        false.stop()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - states of a library, which tells nobody
            await anyio.sleep(0.01)


def test_a_process_says_one_line_and_ends_with_code_2(
    server: NatsServer, authority: Authority, stranger: Authority
) -> None:
    command = [
        sys.executable,
        "-m",
        "phloem_grammar",
        "--model",
        "tiny",
        "--nats-url",
        f"tls://127.0.0.1:{server.port}",
    ]
    start = time.monotonic()
    done = subprocess.run(
        [*command, "--nats-tls-ca", str(stranger.certificate)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PHLOEM_LOG_LEVEL": "error"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    line = done.stderr.strip()
    assert "\n" not in line
    assert line.startswith("error: --nats-tls-ca (PHLOEM_NATS_TLS_CA): the broker at tls://127.0.0.1:")
    assert time.monotonic() - start < 30
