"""A nats-server that runs already: whether it answers, and whether it wants a password."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

from .errors import BrokerMissing
from .plan import Broker

ANSWER_S = 2.0  # a broker says INFO at once; over this it would be too slow to work with
INFO_BYTES_MOST = 65_536
NATS_PORT = 4222


def inspect(url: str) -> Broker:
    """Ask the broker at ``url`` (``nats://host:port``, or ``tls://`` for one that speaks TLS).

    Raises:
        BrokerMissing: nobody answers there, or it is not a nats-server.
    """
    parts = urlsplit(url if "//" in url else f"nats://{url}")
    host, port = parts.hostname, parts.port or NATS_PORT
    if not host:
        raise BrokerMissing(f"--nats-url: no host in {url!r}")
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            line = _first_line(connection)
    except OSError as error:
        raise BrokerMissing(f"--nats-url: no broker at {host}:{port} ({error.strerror or error})") from error
    verb, _, body = line.partition(b" ")
    try:
        info = json.loads(body) if verb == b"INFO" else None
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise BrokerMissing(f"--nats-url: what answers at {host}:{port} is not a nats-server")
    scheme = "tls" if parts.scheme == "tls" or info.get("tls_required") else "nats"
    return Broker(url=f"{scheme}://{host}:{port}", wants_password=bool(info.get("auth_required")))


def _first_line(connection: socket.socket) -> bytes:
    received = b""
    while b"\n" not in received and len(received) < INFO_BYTES_MOST:
        chunk = connection.recv(4096)
        if not chunk:
            break
        received += chunk
    return received.partition(b"\n")[0]
