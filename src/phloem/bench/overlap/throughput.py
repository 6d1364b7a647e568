"""From counts and clocks to a ceiling and where it goes. Pure figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

CLIENT = "client"
FULL = 0.9
"""Share of the cores' time that is used if they are what bounds the rate."""
HALVINGS = 60
"""Of the interval in which the cost of watching a call lies: to the last bit."""
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
    made: int
    """Calls of others, by this function."""
    own_s: float
    """CPU time without what it calls."""
    net_s: float = 0.0
    """A guess at what it is when nobody watches: see `unwatched`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A service as the profiler saw it."""

    cpu_s: float
    tokens: float
    functions: Sequence[Function]
    rest: Function
    """What no function did."""

    def top(self, most: int) -> list[Share]:
        """The ``most`` dearest, the rest of the service's CPU time as `REST` among them."""
        everything = [*self.functions, self.rest]
        watched, net = (
            sum(times) or 1.0 for times in zip(*((one.own_s, one.net_s) for one in everything), strict=True)
        )
        shares = [Share(one, one.own_s / watched, one.net_s / net) for one in everything]
        return sorted(shares, key=lambda share: share.watched + share.net, reverse=True)[:most]


def profile_of(cpu_s: float, tokens: float, functions: Sequence[Function]) -> Profile:
    """The rest is what is left of ``cpu_s``, and made the calls that no function made."""
    made = sum(one.calls - one.made for one in functions)
    left = cpu_s - sum(one.own_s for one in functions)
    return Profile(cpu_s, tokens, functions, Function("", REST, 0, max(0, made), max(0.0, left)))


@dataclass(frozen=True, slots=True)
class Share:
    """Of a service's CPU time: as it was watched, and without what watching cost."""

    function: Function
    watched: float
    net: float


def unwatched(profile: Profile, cpu_s: float) -> Profile:
    """``profile`` with a guess at what all took without the profiler, whose cost is the same for each call, on either side of it.

    Args:
        cpu_s: CPU time that the service takes for as many tokens when nobody watches. It tells how much that cost is.
    """
    everything = [*profile.functions, profile.rest]
    low, high = 0.0, profile.cpu_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if sum(_without(one, middle) for one in everything) > cpu_s:
            low = middle
        else:
            high = middle
    *functions, rest = (replace(one, net_s=_without(one, low)) for one in everything)
    return replace(profile, functions=functions, rest=rest)


def _without(one: Function, cost_s: float) -> float:
    """Own time without ``cost_s`` per call that it was and per call that it made."""
    return max(0.0, one.own_s - (one.calls + one.made) * cost_s)
