"""Carry out visits of the mix and keep count; nothing of a visit is kept, so that our own memory does not grow either."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field

import anyio
import grpc

from phloem.bench.http1 import BadResponse, Client, ConnectFailed, Disconnected
from phloem_proto.v1 import phloem_pb2 as pb
from phloem_proto.v1 import phloem_pb2_grpc

from .figures import Figures, silences
from .mix import Abort, Generate, Leave, Page, Visit
from .scene import until
from .stream import REFUSED, Stream, follow

VISIT_S = 120.0
"""How long one may take."""
TROUBLES = 8
SHOWN_BYTES = 300


@dataclass(slots=True)
class Tally:
    """What all visits came to."""

    kinds: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    """As they should: answered, or left when their client meant to leave."""
    refused: int = 0
    failed: int = 0
    wrong: int = 0
    duplicated: int = 0
    worst_gap_s: float | None = None
    troubles: dict[str, None] = field(default_factory=dict)
    """Each once, the first few."""

    def fail(self, kind: str, why: str) -> None:
        self.failed += 1
        if len(self.troubles) < TROUBLES:
            self.troubles[f"{kind}: {why}"] = None

    def figures(self) -> Figures:
        """As those of any row."""
        return Figures(
            requests=sum(self.kinds.values()),
            ended=self.ended,
            refused=self.refused,
            failed=self.failed,
            wrong=self.wrong,
            duplicated=self.duplicated,
            worst_gap_s=self.worst_gap_s,
        )


class Visitors:
    """Clients of a gateway. Close them before descriptors are counted: they keep connections.

    Args:
        client: for HTTP.
        grpc_target: ``host:port`` for gRPC.
    """

    def __init__(self, client: Client, grpc_target: str) -> None:
        self.tally = Tally()
        self._client = client
        self._channel = grpc.aio.insecure_channel(grpc_target)
        self._stub = phloem_pb2_grpc.PhloemStub(self._channel)  # type: ignore[no-untyped-call]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._channel.close(None)
        await self._client.aclose()

    async def make(self, visit: Visit) -> None:
        """Never raises for what the server does."""
        self.tally.kinds[visit.kind] += 1
        with anyio.move_on_after(VISIT_S) as scope:
            match visit:
                case Generate():
                    await self._generate(visit)
                case Page():
                    await self._page(visit)
                case Abort():
                    await self._abort(visit)
        if scope.cancelled_caught:
            self.tally.fail(visit.kind, f"no end within {VISIT_S:g} s")

    async def _generate(self, visit: Generate) -> None:
        stream = Stream(visit.request)
        if visit.leave is Leave.NEVER:
            await follow(self._client, stream)
        else:
            await self._leave(visit, stream)
        self._count(visit, stream)

    async def _leave(self, visit: Generate, stream: Stream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, self._client, stream)
            if visit.leave is Leave.AT_ONCE:
                await anyio.sleep(visit.leave_at)
            else:
                await until(lambda: len(stream.ids) >= visit.leave_at or stream.over_at > 0, VISIT_S)
            tasks.cancel_scope.cancel()

    def _count(self, visit: Generate, stream: Stream) -> None:
        tally = self.tally
        left = visit.leave is not Leave.NEVER and not stream.trouble
        if stream.refused:
            tally.refused += 1
        elif stream.ended or left:
            tally.ended += 1
        else:
            tally.fail(visit.kind, f"{stream.status} {stream.trouble or stream.finish}")
        tally.wrong += stream.ended and not visit.request.is_right(stream.text)
        tally.duplicated += stream.repeated > 0
        gaps = [end - start for start, end in silences(stream)]
        tally.worst_gap_s = max([*gaps, tally.worst_gap_s or 0.0]) if gaps else tally.worst_gap_s

    async def _page(self, visit: Page) -> None:
        try:
            async with self._client.request(visit.method, visit.path, visit.body) as response:
                status, reply = response.status, await response.read()
        except (ConnectFailed, Disconnected, BadResponse) as error:
            self.tally.fail(visit.kind, str(error))
            return
        if status in visit.expected and (status != 200 or visit.is_right(reply)):
            self.tally.ended += 1
        elif status in REFUSED:
            self.tally.refused += 1
        else:
            self.tally.fail(visit.kind, f"{status} {reply[:SHOWN_BYTES].decode('utf-8', 'replace')}")

    async def _abort(self, visit: Abort) -> None:
        """Its stream says ABORTED, unless it was over before."""
        request_id = f"soak-{secrets.token_hex(8)}"
        sampling = pb.SamplingParams(max_tokens=visit.tokens, ignore_eos=True, seed=visit.seed)
        read = 0
        call = self._stub.Generate(pb.GenerateRequest(request_id=request_id, text=visit.text, sampling=sampling))
        try:
            async for _ in call:
                read += 1
                if read == visit.chunks:
                    await self._stub.Abort(pb.AbortRequest(request_ids=[request_id]))
            self.tally.ended += 1
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                self.tally.ended += 1
            elif read == 0 and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                self.tally.refused += 1
            else:
                self.tally.fail(visit.kind, f"{error.code().name} {error.details()}")
        finally:
            call.cancel()
