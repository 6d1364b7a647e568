"""What a container would be told, said so that it is true for a process on this machine: hosts, ports, paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class Local:
    """What is where.

    ``ports`` maps (service, port in its container) to a port of this machine; ``paths`` maps paths in a container to paths here.
    """

    services: Sequence[str]
    ports: Mapping[tuple[str, int], int] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def text(self, value: str) -> str:
        """``value`` with ``service:port`` and container paths replaced. A service's name without a port is left alone: it may be a word."""
        return self._hosts(self._paths(value))

    def _hosts(self, value: str) -> str:
        names = "|".join(re.escape(name) for name in self.services)
        if not names:
            return value
        # A host stands at the start, or after // of a URL, after its user's @, or after a comma in a list.
        return re.sub(rf"(^|//|@|,)({names}):(\d+)\b", self._address, value)

    def _address(self, found: re.Match[str]) -> str:
        before, service, port = found[1], found[2], int(found[3])
        return f"{before}{LOOPBACK}:{self.ports.get((service, port), port)}"

    def _paths(self, value: str) -> str:
        for target in sorted(self.paths, key=len, reverse=True):  # the deepest mount wins
            if value == target or value.startswith(f"{target}/"):
                return self.paths[target] + value[len(target) :]
        return value
