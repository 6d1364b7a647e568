"""nats-py clients as we want them: opened with a deadline, never reconnecting by themselves, and gone for good when told so.

nats-py's own reconnection is off: it would send what was buffered before the loss as a stale burst, gives up after some error replies
of the server, and can wait for ever for a half-open socket to close. `NatsBus` opens a new client instead, which is one path for all of that.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import nats.errors
from nats.aio.client import Client

from .errors import ConfigError, Disconnected

_log = logging.getLogger("phloem.bus")

CONNECT_S = 3.0
"""How long opening a connection may take."""
PING_S = 1
"""Between pings. With two unanswered ones allowed, a frozen server is noticed within some 3 s."""
CLOSE_S = 1.0
PENDING_BYTES = 64 * 1024 * 1024
"""What nats-py may buffer; `NatsBus` refuses at a quarter of it."""


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Where the broker is and who we are there.

    Args:
        url: ``nats://host:port`` or ``tls://host:port``; several separated by commas.
        user: user name, "" = none.
        password: from a file, never from a flag.
        tls_ca: PEM file of the authority that signed the server's certificate; None = the system's authorities (for ``tls://``).
        name: shown by the server's monitoring.
        inbox: prefix of the subjects that replies to us come to. Private to a role and instance, so that a user may be kept from reading
            others' replies: ``_INBOX_<role>.<instance>``.
    """

    url: str = "nats://127.0.0.1:4222"
    user: str = ""
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    name: str = ""
    inbox: str = "_INBOX"

    def servers(self) -> list[str]:
        """The URLs one by one.

        Raises:
            ConfigError: one is no URL of a NATS server, or holds a password.
        """
        urls = [url.strip() for url in self.url.split(",")]
        for url in urls:
            _check_url(url)
        return urls

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context, or None for plain TCP.

        Raises:
            ConfigError: the file is no certificate.
        """
        if self.tls_ca is None:
            return ssl.create_default_context() if self.url.startswith("tls://") else None
        try:
            return ssl.create_default_context(cafile=str(self.tls_ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("--nats-tls-ca", f"not a usable certificate file: {error}") from error


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("nats", "tls") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("--nats-url", f"not a URL like nats://host:4222: {url!r}")
    if parts.password is not None:
        raise ConfigError("--nats-url", "a password belongs into --nats-password-file")


class Refused(Exception):
    """Raised when the broker is there and does not let us in."""


async def open_client(
    options: NatsOptions, *, on_closed: Callable[[], Awaitable[None]], on_error: Callable[[Exception], Awaitable[None]]
) -> Client:
    """A connected client that never reconnects.

    Raises:
        Disconnected: the broker can't be reached.
        Refused: it can, and says no.
        ConfigError: an option can't be used.
    """
    client = Client()
    settings: dict[str, Any] = {"tls": options.tls()} if options.tls() is not None else {}
    if options.user:
        settings |= {"user": options.user, "password": options.password}
    try:
        with anyio.fail_after(CONNECT_S):
            await client.connect(
                options.servers(),
                name=options.name or None,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=2,
                dont_randomize=True,
                ping_interval=PING_S,
                max_outstanding_pings=2,
                pending_size=PENDING_BYTES,
                closed_cb=on_closed,
                error_cb=on_error,
                **settings,
            )
    except BaseException as error:
        abort(client)
        if isinstance(error, nats.errors.Error) and "authorization" in str(error).lower():
            raise Refused(str(error).removeprefix("nats: ").strip("' ")) from error
        if isinstance(error, (OSError, nats.errors.Error, TimeoutError)):
            raise Disconnected(f"no NATS server at {options.url}: {error}") from error
        raise
    return client


async def round_trip(client: Client) -> None:
    """Return once the server has everything that was given to ``client``. Give it a deadline.

    nats-py's ``flush`` writes its PING past what is still buffered, so that the answer may come before a SUB or PUB has even left. The
    buffer must be empty first, and nothing tells when it is.
    """
    pause = 0.0
    while client.pending_data_size > 0 and client.is_connected:
        await anyio.sleep(pause)
        pause = min(pause + 0.0001, 0.005)
    await client.flush()


async def close_client(client: Client) -> None:
    """Close within ``CLOSE_S``, whatever state the connection is in."""
    with anyio.CancelScope(shield=True):
        try:
            with anyio.move_on_after(CLOSE_S):
                await client.close()
        except Exception as error:  # whatever it is, this client is given up, and its owner must go on
            _log.debug("closing a NATS client: %s", error)
        abort(client)


def abort(client: Client) -> None:
    """Leave nothing of a client behind: no task, no socket.

    ``Client.close`` alone waits for a frozen server to take what is buffered; there is no public call that doesn't.
    """
    for name in ("_reading_task", "_ping_interval_task", "_flusher_task", "_reconnection_task"):
        task: asyncio.Task[Any] | None = getattr(client, name, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
    for subscription in list(getattr(client, "_subs", {}).values()):
        task = getattr(subscription, "_wait_for_msgs_task", None)
        if task is not None:
            task.cancel()
    writer: asyncio.StreamWriter | None = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


def violation(error: Exception) -> tuple[str, str] | None:
    """(``publish`` or ``subscription``, subject in lower case) if the server said that this user may not.

    nats-py lowers all error texts, so nothing can be told of the subject's own case.
    """
    found = _VIOLATION.search(str(error))
    return (found.group(1).lower(), found.group(2).lower()) if found else None
