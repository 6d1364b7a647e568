"""Secrets of a local run: taken from the compose file's files where they exist, made where they don't, in a private folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from .errors import ComposeError

PASSWORD_PREFIX = "nats_password_"
API_KEYS = "api_keys"
BROKER_SECRET = "nats_passwords"
TOKEN_BYTES = 24


def generate(names: Iterable[str]) -> dict[str, str]:
    """A value for each secret of ``names``. Raises ComposeError for one that is not ours to make up.

    ``nats_password_<user>`` is random; ``nats_passwords``, which only the broker reads, holds all of those as ``<USER>_PASSWORD`` lines of
    nats-server's configuration language; ``api_keys`` holds one random key (the gateway reads it only if told to).
    """
    wanted = list(names)
    values = {name: secrets.token_urlsafe(TOKEN_BYTES) for name in wanted if name.startswith(PASSWORD_PREFIX)}
    for name in wanted:
        if name == BROKER_SECRET:
            values[name] = broker_file(values)
        elif name == API_KEYS:
            values[name] = f"sk-{secrets.token_urlsafe(TOKEN_BYTES)}\n"
        elif name not in values:
            raise ComposeError(
                f"secrets.{name}: its file is missing, and only broker passwords and API keys can be made here"
            )
    return values


def broker_file(passwords: dict[str, str]) -> str:
    """The broker's view of ``passwords`` (secret name -> value)."""
    lines = (
        f'{name.removeprefix(PASSWORD_PREFIX).upper()}_PASSWORD: "{value}"'
        for name, value in passwords.items()
        if name.startswith(PASSWORD_PREFIX)
    )
    return "".join(f"{line}\n" for line in lines)


def write_private(path: Path, value: str) -> None:
    """Write a new ``path`` that nobody else could read at any moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(value)
