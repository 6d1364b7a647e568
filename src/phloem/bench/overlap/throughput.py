"""From counts and clocks to a ceiling and where it goes. Pure figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLIENT = "client"
FULL = 0.9
"""Share of the cores' time that is used if they are what bounds the rate."""
REST = "(event loop and system calls)"
"""What a service does outside any function that the profiler sees."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One run with a device that takes no time."""

    streams: int
    tokens: float
    """That came out of the gateway's socket in the window."""
    window_s: float
    tokens_per_event: float
    bytes_per_token: float
    cpu_s: dict[str, float]
    """CPU time in the window by process, the client's under `CLIENT`."""
    system_s: dict[str, float]
    """How much of it in the kernel."""
    cores: int
    busy_share: float
    """Of the cores' time in the window, used by whomever."""

    @property
    def rate(self) -> float:
        """Tokens per second with the client on the same cores."""
        return self.tokens / self.window_s

    @property
    def apart(self) -> float:
        """Tokens per second if the client were elsewhere and its CPU time went to the others as theirs does; see `full`."""
        everybody = sum(self.cpu_s.values())
        return self.rate * everybody / (everybody - self.cpu_s[CLIENT])

    @property
    def full(self) -> bool:
        """Whether the cores bound the rate; only then is `apart` more than a guess."""
        return self.busy_share >= FULL

    @property
    def us_per_token(self) -> dict[str, float]:
        """Microseconds of CPU by process."""
        return {name: used / self.tokens * 1e6 for name, used in self.cpu_s.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Of the CPU time of all but the client."""
        ours = {name: used for name, used in self.cpu_s.items() if name != CLIENT}
        return {name: used / sum(ours.values()) for name, used in ours.items()}


@dataclass(frozen=True, slots=True)
class Function:
    """What one function cost while the profiler watched."""

    place: str
    """File and line, "" for what is not Python."""
    name: str
    calls: int
    own_s: float
    """CPU time without what it calls."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A service as the profiler saw it."""

    cpu_s: float
    tokens: float
    functions: Sequence[Function]

    def top(self, most: int) -> list[tuple[Function, float]]:
        """The ``most`` dearest and their shares of the service's CPU time, the rest of it as `REST` among them."""
        seen = sum(one.own_s for one in self.functions)
        rest = Function("", REST, 0, max(0.0, self.cpu_s - seen))
        whole = (seen + rest.own_s) or 1.0
        dearest = sorted([*self.functions, rest], key=lambda one: one.own_s, reverse=True)[:most]
        return [(one, one.own_s / whole) for one in dearest]
