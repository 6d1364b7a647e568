"""What to do: the flags, validated, and the settings that the deployment gets because of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TINY = "tiny"
EXACT = "float32"
"""The number type in which equal tokens are promised after a recovery."""
_TINY_SETTINGS = {"PHLOEM_DTYPE": EXACT, "PHLOEM_THREADS": "1", "PHLOEM_KV_TOKENS": "131072"}
"""The tiny model gains nothing from more threads, and would otherwise get gigabytes of KV."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asked for. Raises ValueError, naming the flag, for what can't be done."""

    file: Path = Path("compose.yaml")
    model: str = TINY
    streams: int = 64
    tokens: int = 400
    """Of each stream."""
    only: tuple[str, ...] = ()
    """Faults by name; empty = all that don't take long."""
    long: bool = False
    flood: int = 10_000
    """Requests of the flood; a fifth of it is the queue."""
    seed: int = 0
    soak_minutes: float = 10.0

    def __post_init__(self) -> None:
        for flag, value, least, most in (
            ("--streams", self.streams, 2, 1024),
            ("--tokens", self.tokens, 50, 1500),
            ("--flood", self.flood, 100, 100_000),
            ("--seed", self.seed, 0, 2**31),
            ("--soak-minutes", self.soak_minutes, 0.1, 1440),
        ):
            if not least <= value <= most:
                raise ValueError(f"{flag}: between {least} and {most}, not {value}")

    @property
    def queue(self) -> int:
        """Choices that may wait."""
        return max(self.flood // 5, self.streams)

    def settings(self, environ: Mapping[str, str], http_port: int, grpc_port: int) -> dict[str, str]:
        """The variables of the deployment: a person's own, what the tiny model needs unless told otherwise, and what we rely on."""
        own = dict(_TINY_SETTINGS) if self.model == TINY else {}
        return own | dict(environ) | {
            "PHLOEM_MODEL": self.model,
            "PHLOEM_HTTP_PORT": str(http_port),
            "PHLOEM_GRPC_PORT": str(grpc_port),
            "PHLOEM_API_KEYS_FILE": "",
            "PHLOEM_MAX_QUEUED": str(self.queue),
            "PHLOEM_LOG_FORMAT": "console",
            "PHLOEM_LOG_LEVEL": "info",
        }  # fmt: skip
