"""When the deployment notices: the first line in a log that says so, while the logs are followed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

LOOK_S = 0.02
NOTICED = re.compile(
    r"is not answering|restarted$|\w left$|lost the connection to NATS|the link to .* ended|is leaving|another scheduler leads"
    r"|leading with term|not ready:"
)
"""What services say when a peer, the broker or the way to it is gone."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Who said what, and when (on the loop's clock)."""

    at: float
    who: str
    line: str


class Lookout:
    """Follows log files from where they end now.

    Args:
        logs: file by instance.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._read = {name: _size(path) for name, path in logs.items()}
        self.first: Sighting | None = None

    async def watch(self) -> None:
        """Return once something was noticed."""
        while self.first is None:
            self.look(anyio.current_time())
            await anyio.sleep(LOOK_S)

    def look(self, now: float) -> None:
        """Read what is new."""
        for name, path in self._logs.items():
            for line in self._news(name, path):
                if self.first is None and NOTICED.search(line):
                    self.first = Sighting(now, name, line)

    def _news(self, name: str, path: Path) -> Iterable[str]:
        start = self._read[name]
        if _size(path) <= start:
            return ()
        with path.open("rb") as log:
            log.seek(start)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read[name] = start + len(whole) + len(end)
        return whole.decode("utf-8", "replace").splitlines()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
