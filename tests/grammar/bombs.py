"""An engine that misbehaves as its task's source says: for the sandbox's tests only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import NoReturn

from phloem_grammar.engine import Compiled, Rejected, Task, TokenizerSource


class Bombs:
    def __init__(self, tokenizer: TokenizerSource) -> None:
        if tokenizer.digest == "broken":
            raise ValueError("no such tokenizer")

    def compile(self, task: Task) -> Compiled | Rejected:
        match task.source:
            case "cpu":
                _spin()
            case "memory":
                _grow()
            case "sudden memory":
                bytearray(4 << 30)
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.write(2, b"what(): last words\n")
                os.abort()
            case "sleep":
                time.sleep(60)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(3)
            case "raise":
                raise RuntimeError("std::bad_alloc")
            case "noise":
                while True:
                    os.write(1, b"x" * 65_536)
            case "descriptors":
                return Rejected(",".join(sorted(os.listdir("/proc/self/fd"), key=int)))
            case "large":
                return Compiled("x" * 3_000_000, 1.0, 1.0)
        return Compiled(task.source, 1.0, 1.0)


def _spin() -> NoReturn:
    while True:
        pass


def _grow() -> NoReturn:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))
