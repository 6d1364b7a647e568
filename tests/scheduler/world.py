"""The core with fake workers, a detokeniser that checks what it is told, and a clock that only moves when told to."""

from __future__ import annotations

from collections import deque
from typing import Any

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import (
    Cancel,
    End,
    GrammarSpec,
    Held,
    KvEvents,
    Open,
    Output,
    Plan,
    SamplingParams,
    StopAt,
    TokenFrame,
    WorkerProfile,
)
from phloem_scheduler.actions import AskCompile, NewSession, PublishKv, Reply, SendLost, SendOutput, SendPlan
from phloem_scheduler.core import Core
from phloem_scheduler.settings import Settings

from .fake_worker import FakeWorker, profile

Key = tuple[bytes, int]


class World:
    """Everything around the core. `turn` lets it decide; `step` runs one plan of a worker."""

    def __init__(
        self,
        settings: Settings | None = None,
        shape: WorkerProfile | None = None,
        workers: int = 1,
        late: float = 0.0,
        forward_ms: float = 0.0,
    ) -> None:
        self.core = Core(settings or Settings(chunk_tokens=64))
        self.now = 100.0
        self.workers: dict[str, FakeWorker] = {}
        self.plans: dict[str, deque[Plan]] = {}
        self.sent: list[Plan] = []
        self.replies: dict[object, Any] = {}
        self.events: list[KvEvents] = []
        self.frames: list[TokenFrame] = []
        self.outputs: dict[Key, list[int]] = {}
        self.ends: dict[Key, End] = {}
        self.compiles: list[GrammarSpec] = []
        self.lost: list[tuple[str, tuple[bytes, ...]]] = []
        self.opened = 0
        self.core.detokeniser_joined("d1")
        for number in range(workers):
            self.join(f"w{number}", FakeWorker(shape or profile(), seed=number, late=late, forward_ms=forward_ms))

    @property
    def worker(self) -> FakeWorker:
        return self.workers["w0"]

    def join(self, name: str, worker: FakeWorker) -> None:
        self.workers[name] = worker
        worker.reset()
        self.plans[name] = deque()
        self.core.worker_joined(name, worker.shape)

    def open(
        self,
        prompt: list[int],
        rid: bytes = b"",
        attempt: int = 1,
        detokeniser: str = "d1",
        gateway: str = "g1",
        **more: Any,
    ) -> bytes:
        """Open a request; keywords are fields of Open or of SamplingParams. Returns its rid."""
        self.opened += 1
        rid = rid or self.opened.to_bytes(16, "big")
        fields = {
            name: more.pop(name)
            for name in ("seed", "n", "have", "grammar", "priority", "salt", "deadline_ms", "age_ms", "accepted")
            if name in more
        }
        params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **more})
        fields.setdefault("seed", 0)
        message = Open(rid, attempt, gateway, detokeniser, pack_ids(prompt), params, **fields)
        self.core.open(message, (rid, attempt), self.now)
        return rid

    def hold(self, rid: bytes, child: int = 0, ended: bool = False) -> Held:
        """What the gateway has of a choice."""
        return Held(pack_ids(self.outputs.get((rid, child), [])), ended)

    def cancel(self, rid: bytes, attempt: int = 1) -> None:
        self.core.cancel(Cancel(rid, attempt), self.now)

    def turn(self) -> None:
        """The core decides; what it wants is done; every invariant is checked."""
        for action in self.core.decide(self.now):
            match action:
                case SendPlan(name, plan):
                    self.plans[name].append(plan)
                    self.sent.append(plan)
                case SendOutput("d1", output):
                    self._take(output)
                case SendOutput():
                    raise AssertionError("output for a detokeniser that is not linked")
                case Reply(ticket, message):
                    self.replies[ticket] = message
                case AskCompile(spec):
                    self.compiles.append(spec)
                case SendLost(gateway, rids):
                    self.lost.append((gateway, rids))
                case PublishKv(message):
                    self.events.append(message)
                case NewSession(name):
                    self.join(name, self.workers[name])
        self.core.check()

    def _take(self, output: Output) -> None:
        for frame in output.frames:
            self.frames.append(frame)
            key = frame.rid, frame.child
            have = self.outputs.setdefault(key, [])
            assert frame.offset <= len(have), "a gap in the output"
            assert key not in self.ends, "something came after the end"
            new = list(unpack_ids(frame.ids))
            assert new[: len(have) - frame.offset] == have[frame.offset : frame.offset + len(new)], "output changed"
            have[frame.offset :] = new
            if frame.end is not None:
                self.ends[key] = frame.end

    def step(self, name: str = "w0") -> bool:
        """Run the oldest plan of a worker and give its result to the core; False if it has none."""
        if not self.plans[name]:
            return False
        result = self.workers[name].run(self.plans[name].popleft())
        self.core.result(name, result)
        self.core.check()
        return True

    def steps(self, count: int) -> None:
        """Decide and run, so many times."""
        for _ in range(count):
            self.turn()
            self.step()

    def finish(self, most: int = 5000) -> None:
        """Run until nothing is left to do."""
        for _ in range(most):
            self.turn()
            if not sum(self.step(name) for name in self.plans):
                self.turn()
                if not any(self.plans.values()):
                    return
        raise AssertionError("it does not come to an end")

    def stop_at(self, rid: bytes, keep: int, child: int = 0, attempt: int = 1) -> None:
        self.core.stop_at(StopAt(rid, attempt, child, keep))

    def assert_empty(self) -> None:
        """Nothing runs, nothing is held, nobody locks anything, and no request is remembered."""
        assert self.core.idle
        assert not self.core.ledger.requests
        assert not self.core.ledger.gateways
        for name, worker in self.core.workers.items():
            assert worker.cache.pool.held == 0
            assert worker.cache.shelf.locked_pages == 0
            assert not self.workers[name].slots
