"""Settings of the gateway, validated at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phloem_bus.errors import ConfigError

RADIX_VIEWS = ("off", "shape", "text")
"""Nothing of the prefix cache; the tree without what prompts say; all but salted prompts."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What an operator may set. Sizes in bytes, times in seconds. A port None = that edge is not served; 0 = any free port."""

    http_host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_host: str = "127.0.0.1"
    grpc_port: int | None = 50051
    api_keys_file: Path | None = None
    """One key per line; blank lines and lines that start with ``#`` don't count. None = everybody may use the API."""
    cors_origins: tuple[str, ...] = ()
    """Origins that browsers may call from; ``*`` = any; empty = CORS off."""
    max_body_bytes: int = 8 * 1024 * 1024
    """As much as a message on the bus may hold; larger prompts could not travel on."""
    request_timeout_s: float = 600.0
    """Deadline of a request whose client gives none."""
    head_timeout_s: float = 30.0
    """How long a client may take to send its headers."""
    body_timeout_s: float = 30.0
    """How long a client may take to send its body."""
    max_live: int = 4096
    """Live requests: each holds a task, a socket and its output here."""
    max_choices: int = 128
    """Choices (prompts times n) of one call, as OpenAI."""
    byte_budget: int = 1024 * 1024
    """Output that a client may leave unread, per choice: minutes of tokens at any speed a person reads."""
    radix: str = "auto"
    """What clients are shown of the prefix cache: one of `RADIX_VIEWS`, or ``auto``."""
    keep_alive_s: float = 15.0
    """Silence on a stream after which a comment (HTTP) or a ping (gRPC) is sent, so that proxies keep it open."""
    patience_s: float = 4.0
    """How long the first open of a request may be tried before its client gets a 503."""
    recover_s: float = 60.0
    """How long a live request waits for a scheduler and a detokeniser to go on with."""

    @property
    def radix_view(self) -> str:
        """One of `RADIX_VIEWS`: ``auto`` shows text where everybody may call anyway, and only the shape where keys tell callers apart."""
        if self.radix != "auto":
            return self.radix
        return "text" if self.api_keys_file is None else "shape"

    def __post_init__(self) -> None:
        if self.radix not in (*RADIX_VIEWS, "auto"):
            raise ConfigError("--radix", f"not one of {', '.join(RADIX_VIEWS)}, auto: {self.radix}")
        for name in ("http_port", "grpc_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(_flag(name), f"not a port: {port}")
        for name in ("max_body_bytes", "max_live", "max_choices", "byte_budget"):
            if getattr(self, name) < 1:
                raise ConfigError(_flag(name), "must be at least 1")
        for name in (
            "request_timeout_s",
            "head_timeout_s",
            "body_timeout_s",
            "keep_alive_s",
            "patience_s",
            "recover_s",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(_flag(name), "must be more than 0")


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The API keys of a file, in order.

    Raises:
        ConfigError: it can't be read, or holds no key.
    """
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--api-keys-file", f"can't read {path}: {type(error).__name__}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ConfigError("--api-keys-file", f"{path} holds no key")
    return keys
