"""Addresses to listen on: bound, and written down."""

from __future__ import annotations

import errno
import socket

from phloem_bus.errors import ConfigError


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket (port 0 = any free one). Raises `ConfigError` in one line when the address is taken or unknown."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(setting, _why(host, port, error)) from None
    return sock


def address(host: str, port: int) -> str:
    """``host:port`` as URLs and gRPC write it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use"
    return f"can't listen on {address(host, port)}: {error.strerror or error}"
