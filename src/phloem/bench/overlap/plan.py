"""What `phloem bench overlap` is to measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .figures import WARM_STEPS

DEVICES = ("sleep", "burn")
"""What the stand-in does in a step: nothing, as a GPU's host, or computing on all cores, as the CPU."""
CASES = ((64, 8.0), (256, 8.0), (64, 2.0))
"""Rows, and milliseconds of a step."""
DEPTHS = (2, 1)
ROWS, STEP_MS = 64, 8.0
"""What the other one is beside, if only rows or only steps are named."""
PROMPT_TOKENS = 64
RUN_S = 4.0
"""Of full steps in a run, if the stand-in holds as many."""
MOST_ROWS = 1024
STAND_IN_CONTEXT = 8192
STAND_IN_TOKENS = 8192 * 16
STAND_IN_VOCABULARY = 49152
"""What the stand-in claims to be: see `phloem_gpu_worker.stand_in`."""
ROOM = 0.9
"""Share of it that is used where nothing is asked for."""
CEILING_PROMPT_TOKENS = 64
"""More than a prompt of the ceiling has."""


@dataclass(frozen=True, slots=True)
class Case:
    """One device at one size. Raises ``ValueError`` for what the stand-in does not hold."""

    device: str
    rows: int
    step_ms: float
    steps: int
    """Full steps to count per run."""

    def __post_init__(self) -> None:
        check_size(self.rows, self.step_ms)
        tokens = PROMPT_TOKENS + self.steps + WARM_STEPS
        if tokens > STAND_IN_CONTEXT or self.rows * tokens > STAND_IN_TOKENS:
            raise ValueError(
                f"{self.rows} rows of {tokens} tokens are more than the stand-in holds "
                f"({STAND_IN_CONTEXT} per row, {STAND_IN_TOKENS} in all); ask for fewer --steps"
            )

    @property
    def model(self) -> str:
        """As the worker's ``--model`` takes it."""
        return f"stand-in:{self.step_ms:g}:{self.device}"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.device}, {self.rows} rows, {self.step_ms:g} ms"


def check_size(rows: int, step_ms: float) -> None:
    """Raises ``ValueError`` for what no case may have."""
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"--rows: 1 to {MOST_ROWS}")
    if not 0.1 <= step_ms <= 1000:
        raise ValueError("--step-ms: 0.1 to 1000")


def usual_steps(rows: int, step_ms: float) -> int:
    """`RUN_S` of them, or what the stand-in holds with room to spare. Raises as `check_size`."""
    check_size(rows, step_ms)
    room = round(ROOM * min(STAND_IN_CONTEXT, STAND_IN_TOKENS // rows)) - PROMPT_TOKENS - WARM_STEPS
    return max(10, min(round(RUN_S * 1e3 / step_ms), room))


def cases(devices: tuple[str, ...], rows: tuple[int, ...], step_ms: tuple[float, ...], steps: int | None) -> list[Case]:
    """Each device at `CASES`, or at all of ``rows`` by all of ``step_ms`` if either is named. Raises ``ValueError``."""
    sizes: tuple[tuple[int, float], ...] = CASES
    if rows or step_ms:
        sizes = tuple((one, ms) for ms in step_ms or (STEP_MS,) for one in rows or (ROWS,))
    return [
        Case(device, one, ms, usual_steps(one, ms) if steps is None else steps)
        for device in devices or DEVICES
        for one, ms in sizes
    ]


@dataclass(frozen=True, slots=True)
class CeilingPlan:
    """How the ceiling is measured. Raises ``ValueError``."""

    streams: int = 64
    tokens: int = 1800
    """Of each stream."""
    model: str = "smollm2"
    """Whose tokenizer turns the stand-in's tokens into text."""

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= MOST_ROWS:
            raise ValueError(f"--streams: 1 to {MOST_ROWS}")
        if self.tokens < 2 * WARM_STEPS:
            raise ValueError(f"--stream-tokens: at least {2 * WARM_STEPS}")
        tokens = CEILING_PROMPT_TOKENS + self.tokens
        if tokens > STAND_IN_CONTEXT or self.streams * tokens > STAND_IN_TOKENS:
            raise ValueError(
                f"{self.streams} streams of {tokens} tokens are more than the stand-in holds "
                f"({STAND_IN_CONTEXT} per stream, {STAND_IN_TOKENS} in all); ask for fewer --stream-tokens"
            )

    def shorter(self) -> CeilingPlan:
        """As it runs under the profiler, where all take several times as long."""
        return replace(self, tokens=max(2 * WARM_STEPS, self.tokens // 2))


@dataclass(frozen=True, slots=True)
class OverlapPlan:
    """What to measure."""

    cases: tuple[Case, ...]
    depths: tuple[int, ...] = DEPTHS
    rounds: int = 1
    nats_url: str | None = None
    """A broker that runs already, for the cases; None = one of our own."""
    seed: int = 0
    ceiling: CeilingPlan | None = None
    """None = it is not measured."""
    profile: bool = False
    """Whether the ceiling is run once more to see where it goes."""
