"""A fake tokenizer and a fake scheduler over a `LocalBus`: real calls, real links, a model that says what a test wants.

Token ids are bytes of UTF-8. What the model says, how fast, and who refuses what, is set on `Backend` between requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup, TaskStatus

from phloem_bus.link import Link, Links
from phloem_bus.local import LocalBroker
from phloem_bus.node import Node, Received
from phloem_bus.presence import Peer, Presence
from phloem_proto import messages as m
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.subjects import Role

CONTEXT = 512
VOCAB = 1000
MODEL = "fake"


@dataclass(slots=True)
class Script:
    """What the model does with the next requests."""

    says: Callable[[m.Open, int], str] = lambda order, child: "Hello world"
    """Text of a child."""
    step: int = 4
    """Tokens per frame."""
    gap_s: float = 0.0
    hold: anyio.Event | None = None
    """Nothing is emitted before this is set."""
    hold_after: int | None = None
    """Tokens per child after which ``hold`` applies; None = before the first."""
    end: m.End | None = None
    """End every choice with this instead, at once."""
    end_after: int = 0
    cached: int = 0


class FakeTokenizer:
    """Bytes as tokens; a stream per open request, whose text goes out over real links."""

    def __init__(self, broker: LocalBroker, instance: str) -> None:
        self.instance = instance
        self.node = Node(
            broker.connect(instance), role=Role.TOKENIZER, instance=instance, incarnation=random.getrandbits(60),
            namespace="test", model=MODEL, rng=random.Random(1),
        )  # fmt: skip
        both = (Role.GATEWAY, Role.SCHEDULER)
        self.presence = Presence(self.node, tells=both, watches=both, profile=self.profile)
        self.links = Links(self.node, self.presence)
        self.to: dict[str, Link] = {}
        self.streams: dict[bytes, m.OpenStream] = {}
        self.opened: list[m.OpenStream] = []
        self.encoded: list[m.Encode] = []
        self.cancelled: list[m.Cancel] = []
        self.lose: Callable[[m.TextFrame], bool] = lambda frame: False
        """Frames for which it holds vanish on their way to the gateway."""
        self.encode_hold: anyio.Event | None = None
        self.refuse_encode: m.ErrorInfo | None = None
        self.refuse_open: m.ErrorInfo | None = None
        self.scope = anyio.CancelScope()

    def profile(self) -> m.Profile:
        return m.Profile(MODEL, tokenizer_digest="t" * 64, context_length=CONTEXT, vocab_size=VOCAB)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        node = self.node
        node.serve(m.Encode, self._encode, limit=64, busy=lambda _: m.Encoded(error=m.ErrorInfo("busy", "busy")))
        node.serve(m.Detokenize, self._detokenize, limit=64, busy=lambda _: m.Detokenized())
        node.serve(m.OpenStream, self._open, limit=64, busy=lambda o: m.OpenReply(o.rid, o.attempt))
        node.on(m.Cancel, lambda received: self._cancel(received.message))
        with self.scope:
            async with anyio.create_task_group() as tasks:
                await tasks.start(node.run, m.TokenizerInbox)
                tasks.start_soon(self.presence.run)
                tasks.start_soon(self.links.run)
                self.presence.on_join(Role.GATEWAY, lambda peer: self._join(tasks, peer))
                self.presence.set_state("ready")
                task_status.started()

    def _join(self, tasks: TaskGroup, peer: Peer) -> None:
        tasks.start_soon(self._connect, peer)

    async def _connect(self, peer: Peer) -> None:
        self.to[peer.instance] = await self.links.connect(
            peer,
            receives=m.GatewayLinkUp,
            on_message=lambda _, message: self._hear(message),
            on_gone=lambda link: None,
            profile=self.profile(),
        )

    async def _encode(self, received: Received[m.Encode]) -> m.Encoded:
        wanted = received.message
        self.encoded.append(wanted)
        if self.encode_hold is not None:
            await self.encode_hold.wait()
        if self.refuse_encode is not None:
            return m.Encoded(error=self.refuse_encode)
        texts = wanted.texts or ("".join(f"<{x.role}>{x.content}\n" for x in wanted.messages),)
        ids = [text.encode() for text in texts]
        longest = max(map(len, ids))
        if wanted.max_tokens and longest > wanted.max_tokens:
            told = f"The prompt has {longest} tokens; the limit is {wanted.max_tokens}."
            return m.Encoded(error=m.ErrorInfo("prompt_too_long", told, "ids"))
        return m.Encoded(tuple(pack_ids(list(one)) for one in ids))

    async def _detokenize(self, received: Received[m.Detokenize]) -> m.Detokenized:
        return m.Detokenized(tuple(decode(list(unpack_ids(ids))) for ids in received.message.ids))

    async def _open(self, received: Received[m.OpenStream]) -> m.OpenReply:
        wanted = received.message
        self.opened.append(wanted)
        if self.refuse_open is None:
            self.streams[wanted.rid] = wanted
        return m.OpenReply(wanted.rid, wanted.attempt, self.refuse_open)

    def _hear(self, message: m.Cancel | m.Live) -> None:
        if isinstance(message, m.Cancel):
            self._cancel(message)

    def _cancel(self, cancel: m.Cancel) -> None:
        self.cancelled.append(cancel)
        self.streams.pop(cancel.rid, None)


class FakeScheduler:
    """Plays `Script` for each accepted open."""

    def __init__(self, broker: LocalBroker, tokenizers: Sequence[FakeTokenizer], instance: str, term: int) -> None:
        self.instance = instance
        self.term = term
        self.node = Node(
            broker.connect(instance), role=Role.SCHEDULER, instance=instance, incarnation=random.getrandbits(60),
            namespace="test", model=MODEL, rng=random.Random(2),
        )  # fmt: skip
        both = (Role.GATEWAY, Role.TOKENIZER)
        self.load = m.Load(
            workers=1, credit_requests=64, credit_bytes=1 << 20, counters={"phloem_scheduler_evicted_tokens_total": 7.0}
        )
        self.presence = Presence(
            self.node, tells=both, watches=both, profile=self.profile, load=lambda: self.load, term=lambda: self.term
        )
        self.tokenizers = {one.instance: one for one in tokenizers}
        self.script = Script()
        self.opened: list[m.Open] = []
        self.cancelled: list[m.Cancel] = []
        self.lives: list[m.Live] = []
        self.flushes: list[m.Flush] = []
        self.refuse_open: m.ErrorInfo | None = None
        self.refuse_flush: m.ErrorInfo | None = None
        self.forget: set[bytes] = set()
        self.output: dict[bytes, tuple[int, list[int]]] = {}
        """Of each request: attempt, and per child how many tokens were emitted, plus one once it has ended."""
        self.running: dict[bytes, anyio.CancelScope] = {}
        self.scope = anyio.CancelScope()
        self._tasks: TaskGroup | None = None

    def profile(self) -> m.Profile:
        return m.Profile(
            MODEL, model_digest="m" * 64, tokenizer_digest="t" * 64, context_length=CONTEXT, vocab_size=VOCAB
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        node = self.node
        node.serve(m.Open, self._open, limit=256, busy=lambda o: m.OpenReply(o.rid, o.attempt))
        node.serve(m.Live, self._live, limit=16, busy=lambda _: m.LiveReply())
        node.serve(m.Flush, self._flush, limit=1, busy=lambda _: m.FlushReply())
        node.on(m.Cancel, self._cancel)
        with self.scope:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await tasks.start(node.run, m.SchedulerInbox)
                tasks.start_soon(self.presence.run)
                self.presence.set_state("ready")
                task_status.started()

    def set_load(self, **changes: float) -> None:
        """Tell another load with the next beat, which goes out at once."""
        values = {name: getattr(self.load, name) for name in self.load.__struct_fields__} | changes
        self.load = m.Load(**values)
        self.presence.set_state("ready")

    async def _open(self, received: Received[m.Open]) -> m.OpenReply:
        order = received.message
        self.opened.append(order)
        if self.refuse_open is None and not all(held.ended for held in order.have or (m.Held(),)):
            assert self._tasks is not None
            self._tasks.start_soon(self._play, order, self.script)
        return m.OpenReply(order.rid, order.attempt, self.refuse_open)

    async def _live(self, received: Received[m.Live]) -> m.LiveReply:
        self.lives.append(received.message)
        unknown = tuple(r.rid for r in received.message.requests if r.rid in self.forget)
        ahead = []
        for asked in received.message.requests:
            attempt, counts = self.output.get(asked.rid, (0, []))
            if attempt == asked.attempt and any(a > b for a, b in zip(counts, asked.offsets, strict=True)):
                ahead.append(m.LiveRequest(asked.rid, attempt, tuple(counts)))
        return m.LiveReply(unknown, received.message.part, tuple(ahead))

    async def _flush(self, received: Received[m.Flush]) -> m.FlushReply:
        self.flushes.append(received.message)
        return m.FlushReply(5, self.refuse_flush)

    def _cancel(self, received: Received[m.Cancel]) -> None:
        self.cancelled.append(received.message)
        scope = self.running.get(received.message.rid)
        if scope is not None:
            scope.cancel()

    async def _play(self, order: m.Open, script: Script) -> None:
        with anyio.CancelScope() as scope:
            self.running[order.rid] = scope
            held_by_child = order.have or (m.Held(),) * order.n
            self.output[order.rid] = order.attempt, [len(held.ids) // 4 + held.ended for held in held_by_child]
            async with anyio.create_task_group() as tasks:
                for child in range(order.n):
                    held = order.have[child] if order.have else m.Held()
                    if not held.ended:
                        tasks.start_soon(self._child, order, script, child, len(held.ids) // 4)
        if self.running.get(order.rid) is scope:
            del self.running[order.rid]

    async def _child(self, order: m.Open, script: Script, child: int, done: int) -> None:
        output = list(script.says(order, child).encode())[: order.params.max_tokens]
        stream = self.tokenizers[order.detokeniser].streams.get(order.rid)
        text, end = finish(output, order, stream.stop if stream else (), bool(stream and stream.include_stop))
        if script.end is not None:
            output, end = output[: script.end_after], script.end
            text = decode(output)
        sent = len(decode(output[:done])) if done else 0
        while True:
            if script.hold is not None and done >= (script.hold_after or 0):
                await script.hold.wait()
            count = min(script.step, len(output) - done)
            last = done + count >= len(output)
            upto = text if last else text[: len(decode_prefix(output[: done + count]))]
            self._emit(order, child, done, output[done : done + count], upto[sent:], end if last else None, script)
            done, sent = done + count, len(upto)
            if last:
                return
            await anyio.sleep(script.gap_s)

    def _emit(
        self, order: m.Open, child: int, offset: int, ids: list[int], text: str, end: m.End | None, script: Script
    ) -> None:
        params = order.params
        logprobs = tuple(logprob(token, params.logprobs) for token in ids) if params.logprobs >= 0 else ()
        prompt: tuple[m.TokenLogprob, ...] = ()
        if params.prompt_logprobs >= 0 and child == 0 and offset == 0:
            wanted = list(unpack_ids(order.ids))[params.logprob_start :]
            prompt = tuple(logprob(token, params.prompt_logprobs) for token in wanted)
            if params.logprob_start == 0:
                prompt = (m.TokenLogprob(prompt[0].id, float("nan"), (), prompt[0].piece), *prompt[1:])
        frame = m.TextFrame(
            order.rid, order.attempt, child, offset, pack_ids(ids), text, end, logprobs, prompt, script.cached
        )
        tokenizer = self.tokenizers[order.detokeniser]
        attempt, counts = self.output[order.rid]
        if attempt == order.attempt:
            counts[child] = offset + len(ids) + (end is not None)
        if order.rid in tokenizer.streams and not tokenizer.lose(frame):
            tokenizer.to[order.gateway].send(m.Text((frame,)))


def finish(output: list[int], order: m.Open, stops: tuple[str, ...], include: bool) -> tuple[str, m.End]:
    """The whole text and how it ends: a stop string cuts ``output`` in place."""
    text = decode(output)
    for stop in stops:
        at = text.find(stop)
        if at >= 0:
            del output[len((text[: at + len(stop)]).encode()) :]
            return text[: at + (len(stop) if include else 0)], m.End("stop", stop)
    if len(output) >= order.params.max_tokens:
        return text, m.End("length")
    return text, m.End("stop")


def logprob(token: int, top: int) -> m.TokenLogprob:
    piece = bytes([token]) if token < 256 else b"?"
    others = tuple(m.TopLogprob((token + i) % 256, -0.25 * (i + 1), bytes([(token + i) % 256])) for i in range(top))
    return m.TokenLogprob(token, -0.25, others, piece)


def decode(ids: Sequence[int]) -> str:
    return bytes(token if token < 256 else 63 for token in ids).decode("utf-8", "replace")


def decode_prefix(ids: Sequence[int]) -> str:
    """The text of the whole characters at the front."""
    return bytes(token if token < 256 else 63 for token in ids).decode("utf-8", "ignore")


@dataclass(slots=True)
class Backend:
    """Everything behind the gateway."""

    broker: LocalBroker = field(default_factory=LocalBroker)
    tokenizers: list[FakeTokenizer] = field(default_factory=list)
    schedulers: list[FakeScheduler] = field(default_factory=list)

    @property
    def tokenizer(self) -> FakeTokenizer:
        return self.tokenizers[0]

    @property
    def scheduler(self) -> FakeScheduler:
        return self.schedulers[0]

    def reset(self) -> None:
        """Forget what was seen and go back to the default script."""
        for tokenizer in self.tokenizers:
            for seen in (tokenizer.opened, tokenizer.encoded, tokenizer.cancelled):
                seen.clear()
            tokenizer.encode_hold = tokenizer.refuse_encode = tokenizer.refuse_open = None
            tokenizer.lose = lambda frame: False
        for scheduler in self.schedulers:
            for told in (scheduler.opened, scheduler.cancelled, scheduler.lives, scheduler.flushes):
                told.clear()
            scheduler.script = Script()
            scheduler.refuse_open = scheduler.refuse_flush = None
