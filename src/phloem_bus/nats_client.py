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
from nats.aio.msg import Msg
from nats.protocol import parser

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
        tls_ca: PEM file of the authority that signed the server's certificate; None = the system's authorities (for ``tls://``). With
            either of them nothing is said to a server that does not speak TLS.
        tls_cert, tls_key: PEM files by which we show who we are, for servers that ask.
        name: shown by the server's monitoring.
        inbox: prefix of the subjects that replies to us come to. Private to a role and instance, so that a user may be kept from reading
            others' replies: ``_INBOX_<role>.<instance>``.
    """

    url: str = "nats://127.0.0.1:4222"
    user: str = ""
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
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
        """The TLS context, or None if no TLS is asked for.

        Raises:
            ConfigError: a file is no certificate or key.
        """
        if not (self.tls_ca or self.tls_cert or self.tls_key or "tls://" in self.url):
            return None
        try:
            context = ssl.create_default_context(cafile=None if self.tls_ca is None else str(self.tls_ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("--nats-tls-ca", f"not a usable certificate file: {error}") from error
        self._show_ourselves(context)
        return context

    def _show_ourselves(self, context: ssl.SSLContext) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "--nats-tls-cert" if self.tls_cert is None else "--nats-tls-key"
            raise ConfigError(missing, "a certificate and its key go together")
        if self.tls_cert is not None:
            try:
                # Without a password a locked key would have OpenSSL ask the terminal.
                context.load_cert_chain(self.tls_cert, self.tls_key, password="")
            except (OSError, ssl.SSLError) as error:
                raise ConfigError("--nats-tls-cert", f"not a usable certificate and key: {error}") from error


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


class _PlainText(nats.errors.Error):
    """Raised in place of sending a password, or anything else, in the clear."""


class _NotShown(nats.errors.Error):
    """Raised where a server wants a certificate that we don't have. It would only hang up, once TLS has been agreed on."""


# A server parts the words of a line at spaces and tabs; a reply subject, which any client makes up, may hold every other byte. nats-py parts at
# whatever is blank, and gives up the connection where that leaves it with a line it does not know.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")
_NO_RESPONDERS = b"NATS/1.0 503\r\n"
"""How headers of the server's answer to a request that nobody hears begin. Newer servers say the subject in them, too."""


class _Client(Client):
    """nats-py, less trusting: one message of a stranger would end its reader, and one line of a false server its caution."""

    def __init__(self, shows_certificate: bool) -> None:
        super().__init__()
        self._shows_certificate = shows_certificate
        self._writes = False

    def _connect_command(self) -> bytes:
        """The first thing said to a server, after TLS if there is any. Where TLS is asked for, it is a condition."""
        if self.options.get("tls") is not None and not self._server_info.get("tls_required"):
            raise _PlainText("it does not speak TLS")
        if self._server_info.get("tls_verify") and not self._shows_certificate:
            raise _NotShown("it wants a certificate")
        return super()._connect_command()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Hand a message to its subscription's callback here and now: ours put it down and return, and need no queue and no task.

        Subjects are text, whatever bytes they are, and there are no headers but those that the server makes; we use none.
        """
        subscription = self._subs.get(sid)
        if subscription is None or subscription._cb is None:
            return
        nobody = not data and headers is not None and headers.startswith(_NO_RESPONDERS)
        status = {"Status": "503"} if nobody else None
        await subscription._cb(Msg(self, _text(subject), _text(reply), data, status))

    async def _flush_pending(self, force_flush: bool = False) -> None:
        """Write what is pending at the end of this turn of the loop. While the socket takes no more, nats-py's task waits for it."""
        if force_flush or self._transport is None or _unsent(self._transport):
            await super()._flush_pending(force_flush)
        elif not self._writes:
            self._writes = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._writes = False
        if self._pending_data_size > 0 and self.is_connected and self._transport is not None:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.writelines(pending)


def _unsent(transport: Any) -> int:
    """Bytes that the socket has not taken yet."""
    waiting: int = transport._io_writer.transport.get_write_buffer_size()
    return waiting


def _text(subject: bytes) -> str:
    """``subject`` with a mark in the place of what is no UTF-8: nobody listens or answers there."""
    return subject.decode("utf-8", "replace")


async def open_client(
    options: NatsOptions, *, on_closed: Callable[[], Awaitable[None]], on_error: Callable[[Exception], Awaitable[None]]
) -> Client:
    """A connected client that never reconnects.

    Raises:
        Disconnected: the broker can't be reached.
        Refused: it can, and says no.
        ConfigError: an option can't be used, or TLS can't be had with it.
    """
    client = _Client(options.tls_cert is not None)
    context = options.tls()
    settings: dict[str, Any] = {} if context is None else {"tls": context}
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
        if (setting := _tls_trouble(error, options)) is not None:
            raise setting from error
        if isinstance(error, nats.errors.Error) and "authorization" in str(error).lower():
            raise Refused(str(error).removeprefix("nats: ").strip("' ")) from error
        if isinstance(error, (OSError, nats.errors.Error, TimeoutError)):
            raise Disconnected(f"no NATS server at {options.url}: {error}") from error
        raise
    return client


def _tls_trouble(error: BaseException, options: NatsOptions) -> ConfigError | None:
    """What is to be changed if that is why there is no TLS with this server. A broken connection is no such reason: it may come back."""
    if isinstance(error, _PlainText):
        return ConfigError("--nats-url", f"TLS is asked for, and the broker at {options.url} does not speak it")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError("--nats-tls-ca", f"the broker at {options.url} is not trusted: {error.verify_message}")
    if isinstance(error, _NotShown):
        return ConfigError("--nats-tls-cert", f"the broker at {options.url} asks for a certificate of ours")
    if isinstance(error, ssl.SSLError) and re.search("ALERT.*(CERTIFICATE|UNKNOWN_CA)", error.reason or ""):
        return ConfigError("--nats-tls-cert", f"the broker at {options.url} does not accept it: {error.reason}")
    return None


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
