"""The fork server: ``python -m phloem_grammar.sandbox_server``. Loads one engine once, then forks a limited child per job.

It is single-threaded and talks frames: `Setup` and `Job` on stdin, `Ready` and `Done` on stdout. It watches each child's CPU time, memory
and clock, kills beyond the limits, and reaps. When stdin ends (the service left or died) it kills its children and exits.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field

from .engine import Died, Engine, Outcome, load
from .refusal import clip
from .sandbox_child import resident_bytes, run_job
from .sandbox_wire import Done, Frames, Job, Ready, Setup, outcome, pack, to_server

WATCH_S = 0.01
"""How often running children are looked at: a child can grow by some 50 MB meanwhile."""
OUTPUT_SHOWN = 200
"""Characters of a dead child's last output that are reported."""
STARVED_SHARE = 0.5
"""A child ended by the clock that waited for a CPU for this share of its time was starved; one that waited for nothing is stuck."""


@dataclass(slots=True)
class Child:
    """A running job."""

    job: int
    pid: int
    result_fd: int
    output_fd: int
    began: float
    baseline: int
    """Resident bytes of the process it was forked from."""
    received: bytearray = field(default_factory=bytearray)
    cause: str = ""
    """Why we killed it."""
    starved: bool = False


class ForkServer:
    """See the module. ``reader`` and ``writer`` are descriptors for frames."""

    def __init__(self, setup: Setup, engine: Engine, reader: int, writer: int) -> None:
        self._setup = setup
        self._engine = engine
        self._writer = writer
        self._frames = Frames()
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(reader, selectors.EVENT_READ)
        self._reader = reader

    def serve(self, frames: Frames) -> None:
        """Until the reader ends. ``frames`` may hold the beginning of the next one."""
        self._frames = frames
        try:
            while self._step():
                pass
        finally:
            for child in self._children.values():
                _kill(child.pid)
                os.waitpid(child.pid, 0)

    def _step(self) -> bool:
        for key, _ in self._selector.select(WATCH_S if self._children else None):
            if key.fd == self._reader:
                data = os.read(self._reader, 1 << 16)
                if not data:
                    return False
                for body in self._frames.feed(data):
                    self._start(to_server.decode(body))
            else:
                self._receive(self._children[key.fd])
        for child in list(self._children.values()):
            self._watch(child)
        return True

    def _start(self, message: Setup | Job) -> None:
        assert isinstance(message, Job), "a second Setup"
        result_read, result_write = os.pipe()
        output_fd = os.memfd_create("output")
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            run_job(
                self._engine,
                message.task,
                self._setup.limits,
                priority=self._setup.priority,
                parent=server,
                result_fd=result_write,
                output_fd=output_fd,
            )
        os.close(result_write)
        child = Child(message.id, pid, result_read, output_fd, time.monotonic(), resident_bytes(server))
        self._children[result_read] = child
        self._selector.register(result_read, selectors.EVENT_READ)

    def _receive(self, child: Child) -> None:
        data = os.read(child.result_fd, 1 << 16)
        if data:
            child.received += data
        else:
            self._reap(child)

    def _watch(self, child: Child) -> None:
        limits = self._setup.limits
        if child.cause or child.result_fd not in self._children:
            return
        if resident_bytes(child.pid) - child.baseline > limits.memory_bytes:
            child.cause = "memory"
        elif _cpu_seconds(child.pid) > limits.cpu_s:
            child.cause = "cpu"
        elif time.monotonic() - child.began > limits.wall_s:
            child.cause = "wall"
            child.starved = starved(_read(f"/proc/{child.pid}/schedstat"), limits.wall_s)
        if child.cause:
            _kill(child.pid)

    def _reap(self, child: Child) -> None:
        """The child closed its pipe, so it is exiting or dead."""
        self._selector.unregister(child.result_fd)
        del self._children[child.result_fd]
        _, status = os.waitpid(child.pid, 0)
        os.close(child.result_fd)
        result = self._result(child, status)
        os.close(child.output_fd)
        _write_all(self._writer, pack(Done(child.job, result)))

    def _result(self, child: Child, status: int) -> Outcome:
        if status == 0 and not child.cause:
            bodies = Frames().feed(bytes(child.received))
            if len(bodies) == 1:
                return outcome.decode(bodies[0])
        last_words = clip(os.pread(child.output_fd, 4096, 0).decode(errors="replace"), OUTPUT_SHOWN)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if child.cause:
            return Died(child.cause, last_words, child.starved)
        if number == signal.SIGXCPU:
            return Died("cpu", last_words)
        if "memory allocation" in last_words or "bad_alloc" in last_words:
            return Died("memory", last_words)
        return Died("crash", f"{signal.Signals(number).name if number else 'exit'}: {last_words}")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


_TICK = os.sysconf("SC_CLK_TCK")


def _cpu_seconds(pid: int) -> float:
    """User and system time so far, 0 when the process is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK if fields else 0.0


def starved(schedstat: bytes, wall_s: float) -> bool:
    """Whether a process spent `STARVED_SHARE` of ``wall_s`` waiting for a CPU. ``schedstat``: nanoseconds run, nanoseconds waited, turns."""
    fields = schedstat.split()
    return len(fields) == 3 and int(fields[1]) >= STARVED_SHARE * wall_s * 1e9


def _read(path: str) -> bytes:
    """A file of /proc, b"" when its process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_setup(reader: int, frames: Frames) -> Setup | None:
    while data := os.read(reader, 1 << 16):
        for body in frames.feed(data):
            message = to_server.decode(body)
            assert isinstance(message, Setup), "a Job before the Setup"
            return message
    return None


def main() -> None:
    """Run as a program. stdout is kept for frames: whatever libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; our end is the end of stdin
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = "1"
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    frames = Frames()
    setup = _read_setup(reader, frames)
    if setup is None:
        return
    try:
        engine = load(setup.engine, setup.tokenizer)
    except Exception as error:
        _write_all(writer, pack(Ready(error=f"{type(error).__name__}: {error}")))
        sys.exit(1)
    gc.collect()
    gc.freeze()  # keeps children from copying pages only to count references
    _write_all(writer, pack(Ready()))
    ForkServer(setup, engine, reader, writer).serve(frames)


if __name__ == "__main__":
    main()
