"""Secrets of a local run: taken from the compose file's files where they exist, made where they don't, in a private folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

PASSWORD_PREFIX = "nats_password_"
BROKER_SECRET = "nats_passwords"
TOKEN_BYTES = 24


def generate(names: Iterable[str]) -> dict[str, str]:
    """A value for each secret of ``names``.

    ``nats_password_<user>`` is random; ``nats_passwords``, which only the broker reads, holds all of those as ``<USER>_PASSWORD`` lines of
    nats-server's configuration language; anything else is empty (no API keys: the gateway is open).
    """
    wanted = list(names)
    values = {name: secrets.token_urlsafe(TOKEN_BYTES) for name in wanted if name.startswith(PASSWORD_PREFIX)}
    for name in wanted:
        if name == BROKER_SECRET:
            values[name] = broker_file(values)
        else:
            values.setdefault(name, "")
    return values


def broker_file(passwords: dict[str, str]) -> str:
    """The broker's view of ``passwords`` (secret name -> value)."""
    lines = (
        f'{name.removeprefix(PASSWORD_PREFIX).upper()}_PASSWORD: "{value}"'
        for name, value in passwords.items()
        if name.startswith(PASSWORD_PREFIX)
    )
    return "".join(f"{line}\n" for line in lines)


def ensure(folder: Path, names: Iterable[str], *, file_mode: int = 0o600) -> list[str]:
    """Make the missing ones of ``names`` as files of ``folder`` (0700). Returns the names that were made.

    A password that is made anew makes the broker's file anew, too: they must agree.

    Args:
        file_mode: 0o644 for files that containers mount: their users have other ids, and the folder keeps everybody else out.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    wanted = list(names)
    present = {name: (folder / name).read_text(encoding="utf-8") for name in wanted if (folder / name).is_file()}
    made = {name: value for name, value in generate(wanted).items() if name not in present}
    everything = {name: made.get(name, present.get(name, "")).strip() for name in wanted}
    if BROKER_SECRET in wanted and broker_file(everything) != present.get(BROKER_SECRET):
        made[BROKER_SECRET] = broker_file(everything)
    for name, value in made.items():
        write_private(folder / name, value, file_mode)
    return sorted(made)


def write_private(path: Path, value: str, mode: int = 0o600) -> None:
    """Write a new ``path``; before ``mode`` is set nobody else can read it."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(value)
    path.chmod(mode)
