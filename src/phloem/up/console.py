"""What `phloem up` shows: every line with its instance before it, one colour per service, and the last lines of each kept."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable
from typing import TextIO

LAST_LINES = 20
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ANSI foregrounds that can be read on dark and light


class Console:
    """Prints lines of instances to ``out``."""

    def __init__(self, services: Iterable[str], instances: Iterable[str], out: TextIO = sys.stdout) -> None:
        self._out = out
        self._colour = out.isatty() and not os.environ.get("NO_COLOR")
        self._codes = {service: _COLOURS[index % len(_COLOURS)] for index, service in enumerate(services)}
        names = list(instances)
        self._width = max((len(name) for name in [*names, "phloem"]), default=0)
        self._last: dict[str, deque[str]] = {name: deque(maxlen=LAST_LINES) for name in names}

    def line(self, instance: str, text: str) -> None:
        """A line that ``instance`` wrote."""
        self._last[instance].append(text)
        self._print(instance, text, self._codes.get(instance.rpartition("-")[0], 0))

    def say(self, text: str) -> None:
        """A line of our own."""
        self._print("phloem", text, 1)

    def show_last(self, instance: str) -> None:
        """The last lines of ``instance`` once more, at the end where they are found."""
        self.say(f"the last lines of {instance}:")
        for text in self._last[instance]:
            self._out.write(f"  {text}\n")
        self._out.flush()

    def _print(self, name: str, text: str, code: int) -> None:
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\x1b[{code}m{prefix}\x1b[0m"
        self._out.write(f"{prefix} {text}\n")
        self._out.flush()
