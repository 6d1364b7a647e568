"""Disconnects, deadlines, credits, outages, recovery, slow clients, drain."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

import phloem_gateway.gateway as gateway_module
import phloem_gateway.recovery as recovery_module
from phloem_gateway.auth import ANYONE
from phloem_gateway.config import GatewayConfig
from phloem_proto.codec import unpack_ids
from phloem_proto.messages import Cancel, End, ErrorInfo, Lost, TextFrame
from phloem_proto.subjects import Role

from .backend import MODEL, FakeScheduler, Script
from .world import Caller, World, events, world

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
CHAT = json.dumps(BODY).encode()
STREAM = json.dumps(BODY | {"stream": True}).encode()
PATH = "/v1/chat/completions"


def quiet(**fields: Any) -> GatewayConfig:
    return GatewayConfig(http_port=None, grpc_port=None, **fields)


async def leave(made: World, body: bytes, stage: Any) -> Caller:
    """Call, and leave as soon as ``stage`` holds; returns once the gateway is done with the call."""
    caller = Caller(made.service.app)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.call, PATH, body)
        await made.until(stage)
        caller.gone.set()
    return caller


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_while_tokenising(shared: World, body: bytes) -> None:
    tokenizer, scheduler = shared.backend.tokenizer, shared.backend.scheduler
    tokenizer.encode_hold = anyio.Event()
    await leave(shared, body, lambda: tokenizer.encoded)
    assert (scheduler.opened, shared.gateway.core.live, shared.gateway.admission.requests) == ([], {}, 0)
    tokenizer.encode_hold.set()


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_while_waiting(shared: World, body: bytes) -> None:
    scheduler = shared.backend.scheduler
    scheduler.script = Script(hold=anyio.Event())
    await leave(shared, body, lambda: scheduler.running)
    await shared.until(lambda: not scheduler.running)
    assert [cancel.rid for cancel in scheduler.cancelled] == [scheduler.opened[0].rid]
    await shared.until(lambda: len(shared.backend.tokenizer.cancelled) == 1)
    assert (shared.gateway.core.live, shared.gateway.admission.requests) == ({}, 0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_decoding(shared: World, n: int, stream: bool) -> None:
    scheduler = shared.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    body = json.dumps(BODY | {"n": n, "stream": stream}).encode()

    def decoding() -> bool:
        lives = list(shared.gateway.core.live.values())
        return bool(lives) and all(len(child.ids) == 4 for child in lives[0].children)

    await leave(shared, body, decoding)
    await shared.until(lambda: not scheduler.running)
    assert shared.gateway.core.live == {}


async def test_a_client_that_leaves_before_its_body_is_whole(shared: World) -> None:
    caller = Caller(shared.service.app)
    caller.gone.set()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    await caller.call("/generate", b"", {"content-length": "10"})
    assert shared.backend.tokenizer.encoded == []


async def test_the_deadline_of_a_whole_reply() -> None:
    async with world(quiet(request_timeout_s=0.3)) as made:
        made.backend.scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        response = await made.post(PATH, BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        await made.until(lambda: not made.backend.scheduler.running)


async def test_the_deadline_of_a_stream_is_an_error_event_and_then_done() -> None:
    async with world(quiet(request_timeout_s=0.3)) as made:
        made.backend.scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        response = await made.post(PATH, BODY | {"stream": True})
        assert response.status_code == 200
        assert events(response.text)[-1]["error"]["code"] == "deadline_exceeded"


async def test_the_deadline_while_tokenising() -> None:
    async with world(quiet(request_timeout_s=0.3)) as made:
        made.backend.tokenizer.encode_hold = anyio.Event()
        response = await made.post(PATH, BODY)
        assert response.status_code == 504
        made.backend.tokenizer.encode_hold.set()


async def test_an_error_in_the_middle_of_a_stream(shared: World) -> None:
    end = End("error", code="grammar_too_slow", message="internal details")
    shared.backend.scheduler.script = Script(end=end, end_after=6, step=3)
    response = await shared.post(PATH, BODY | {"stream": True})
    shown = events(response.text)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in shown if "choices" in c) == "Hel"
    assert shown[-1]["error"]["code"] == "internal_error"
    assert "details" not in response.text


async def test_without_a_credit_the_answer_is_429_before_tokenising() -> None:
    async with world() as made:
        made.backend.scheduler.set_load(credit_requests=1, retry_after_ms=4200)
        made.backend.scheduler.script = Script(hold=anyio.Event())
        await made.until(lambda: made.gateway.backends.leader().load.credit_requests == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.post, PATH, BODY)
            await made.until(lambda: len(made.backend.scheduler.running) == 1)
            refused = await made.post(PATH, BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused.headers["retry-after"] == "5"
            assert len(made.backend.tokenizer.encoded) == 1
            # Not even read: what a flood sends costs nothing, and is told so before what is wrong with it.
            assert (await made.post(PATH, {"nonsense": 1})).status_code == 429
            made.backend.scheduler.script.hold.set()  # type: ignore[union-attr]
        assert (await made.post(PATH, BODY)).status_code == 200


@pytest.mark.parametrize("what", ["broker", "worker", "scheduler", "tokenizer"])
async def test_503_within_a_second_when_something_is_missing(what: str) -> None:
    async with world() as made:
        if what == "broker":
            made.backend.broker.stop()
        elif what == "worker":
            made.backend.scheduler.set_load(workers=0)
        else:
            (made.backend.scheduler if what == "scheduler" else made.backend.tokenizer).scope.cancel()
        await anyio.sleep(0.1)
        for path, body in (
            (PATH, BODY),
            ("/generate", {"text": "x"}),
            ("/v1/completions", {"model": MODEL, "prompt": [1]}),
        ):
            with anyio.fail_after(1.5):
                begun = anyio.current_time()
                response = await made.post(path, body)
            assert anyio.current_time() - begun < 1.0
            assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")
            assert int(response.headers["retry-after"]) >= 1
        assert made.gateway.core.live == {}


@pytest.mark.parametrize("how", ["leaves", "is aborted", "is late"])
async def test_what_ends_while_the_bus_is_down_is_cancelled_once_it_is_back(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(quiet(request_timeout_s=0.5 if how == "is late" else 60.0)) as made:
        scheduler, tokenizer, tries = made.backend.scheduler, made.backend.tokenizer, 0
        send = made.gateway._node.send

        async def counted(*args: Any) -> None:
            nonlocal tries
            tries += isinstance(args[2], Cancel)
            await send(*args)

        monkeypatch.setattr(made.gateway._node, "send", counted)
        scheduler.script = Script(hold=anyio.Event())
        caller = Caller(made.service.app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.call, PATH, CHAT, {"x-request-id": "mine"})
            await made.until(lambda: bool(scheduler.running))
            made.backend.broker.stop()
            if how == "leaves":
                caller.gone.set()
            elif how == "is aborted":
                assert made.gateway.abort(ANYONE, "mine") == 1
        assert made.gateway.core.live == {}
        await anyio.sleep(0.5)  # nothing can happen in this time but useless tries
        assert (scheduler.cancelled, tokenizer.cancelled, 1 <= tries <= 20) == ([], [], True)
        made.backend.broker.start()
        cancel = Cancel(scheduler.opened[0].rid, 1)
        await made.until(lambda: scheduler.cancelled == tokenizer.cancelled == [cancel], timeout_s=1.0)


async def test_a_large_call_that_is_aborted_while_it_is_opened_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        gateway, added = made.gateway, made.gateway._add
        made.backend.scheduler.set_load(credit_requests=200)
        await made.until(lambda: gateway.backends.leader().load.credit_requests == 200)
        made.backend.scheduler.script = Script(hold=anyio.Event())

        def add(answer: Any, *others: Any) -> None:
            added(answer, *others)
            if len(answer.lives) == 20:
                assert gateway.abort(ANYONE, "mine") == 1

        monkeypatch.setattr(gateway, "_add", add)
        body = {"input_ids": [[1, 2, 3]] * 100, "sampling_params": {"max_new_tokens": 4}}
        refused = await made.post("/generate", body, headers={"x-request-id": "mine"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "aborted")
        assert (gateway.core.live, gateway.admission.held, gateway.admission.requests) == ({}, 0, 0)


async def test_before_anybody_is_there_it_is_not_ready() -> None:
    async with world(wait=False, schedulers=0, tokenizers=0) as made, made.client() as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "not_ready")
        assert (await client.get("/live")).status_code == 200
        assert (await client.post(PATH, json=BODY)).status_code == 503
        assert (await client.post(PATH, json={})).status_code == 400  # what is wrong is told first


async def test_a_lost_request_goes_on_from_what_is_held(shared: World) -> None:
    scheduler = shared.backend.scheduler
    script = scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    replies: list[Any] = []

    async def call() -> None:
        replies.append(await shared.post(PATH, BODY | {"stream": True, "seed": 7}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await shared.until(lambda: any(live.completion_tokens == 4 for live in shared.gateway.core.live.values()))
        first = scheduler.opened[0]
        scheduler.running[first.rid].cancel()
        scheduler.script = Script()
        await scheduler.node.send(Role.GATEWAY, "gw", Lost((first.rid,), "retracted"))
        await shared.until(lambda: len(scheduler.opened) == 2)
    second = scheduler.opened[1]
    assert (second.attempt, second.seed, second.cached_tokens) == (2, 7, 0)
    assert bytes(list(unpack_ids(second.have[0].ids))) == b"Hell"
    assert shared.backend.tokenizer.opened[1].have == second.have
    shown = events(replies[0].text)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in shown) == "Hello world"
    assert script is not scheduler.script


async def test_a_detokeniser_that_dies_is_replaced() -> None:
    async with world(tokenizers=2) as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        replies: list[Any] = []

        async def call() -> None:
            replies.append(await made.post(PATH, BODY | {"n": 2}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await made.until(lambda: any(live.completion_tokens == 8 for live in made.gateway.core.live.values()))
            first = scheduler.opened[0]
            scheduler.script = Script()
            scheduler.tokenizers[first.detokeniser].scope.cancel()
            await made.until(lambda: len(scheduler.opened) == 2)
        assert scheduler.opened[1].detokeniser != first.detokeniser
        assert [c["message"]["content"] for c in replies[0].json()["choices"]] == ["Hello world", "Hello world"]


async def test_tries_that_fail_leave_no_stream_behind() -> None:
    async with world(quiet(patience_s=1.5), tokenizers=2) as made:
        scheduler = made.backend.scheduler
        scheduler.refuse_open = ErrorInfo("unavailable", "not now", retry_after_ms=1000)
        response = await made.post(PATH, BODY)
        assert response.status_code == 503
        used = {one.instance for one in made.backend.tokenizers if one.opened}
        assert used
        await made.until(lambda: not any(one.streams for one in made.backend.tokenizers))


async def test_a_new_request_waits_a_moment_for_the_next_leader() -> None:
    async with world() as made:
        new = FakeScheduler(made.backend.broker, made.backend.tokenizers, "sched9", 2)
        made.backend.scheduler.scope.cancel()
        await made.until(lambda: made.gateway.backends.trouble() is not None)
        replies: list[Any] = []

        async def call() -> None:
            replies.append(await made.post(PATH, BODY))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.sleep(0.2)  # less than a request waits
            await tasks.start(new.run)
            await made.until(lambda: bool(replies))
            tasks.cancel_scope.cancel()
        assert replies[0].status_code == 200


async def test_the_scheduler_with_workers_leads_whatever_the_terms() -> None:
    async with world(schedulers=1) as made:
        claims = FakeScheduler(made.backend.broker, made.backend.tokenizers, "sched9", 9)
        claims.set_load(workers=0)
        async with anyio.create_task_group() as tasks:
            await tasks.start(claims.run)
            await made.until(lambda: len(made.gateway.backends.presence.peers(Role.SCHEDULER)) == 2)
            assert (await made.post(PATH, BODY)).status_code == 200
            tasks.cancel_scope.cancel()
        assert (len(made.backend.scheduler.opened), claims.opened) == (1, [])


async def test_a_restarted_scheduler_gets_the_requests_again() -> None:
    async with world() as made:
        old = made.backend.scheduler
        old.script = Script(hold=anyio.Event(), hold_after=4)
        new = FakeScheduler(made.backend.broker, made.backend.tokenizers, "sched9", 2)
        replies: list[Any] = []

        async def call() -> None:
            replies.append(await made.post(PATH, BODY))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            old.scope.cancel()
            await tasks.start(new.run)
            await made.until(lambda: bool(replies))
            tasks.cancel_scope.cancel()
        assert replies[0].json()["choices"][0]["message"]["content"] == "Hello world"
        assert (new.opened[0].attempt, bytes(list(unpack_ids(new.opened[0].have[0].ids)))) == (2, b"Hell")


async def test_reconcile_names_live_requests_and_reopens_what_the_scheduler_forgot() -> None:
    async with world() as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.post, PATH, BODY)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            rid = scheduler.opened[0].rid
            scheduler.running[rid].cancel()
            scheduler.forget.add(rid)
            scheduler.script = Script()
            await made.until(lambda: len(scheduler.opened) == 2, timeout_s=8.0)
        named = [[(r.rid, r.attempt, r.offsets) for r in live.requests] for live in scheduler.lives]
        assert [(rid, 1, (4,))] in named
        await made.until(lambda: scheduler.lives[-1].requests == (), timeout_s=5.0)


LOST: dict[str, Callable[[TextFrame], bool]] = {
    "the first frame": lambda frame: frame.attempt == 1,
    "the last frame": lambda frame: frame.attempt == 1 and frame.end is not None,
    "the last frames of one choice": lambda frame: frame.attempt == 1 and frame.child == 1 and frame.offset >= 4,
}


@pytest.mark.parametrize("what", LOST)
async def test_a_stream_whose_last_frames_were_lost_is_opened_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "RECONCILE_S", 0.05)
    async with world() as made:
        made.backend.tokenizer.lose = LOST[what]
        with anyio.fail_after(10.0):
            response = await made.post(PATH, BODY | {"n": 2})
        assert [c["message"]["content"] for c in response.json()["choices"]] == ["Hello world"] * 2
        assert [order.attempt for order in made.backend.scheduler.opened] == [1, 2]


async def test_a_client_that_reads_slowly_is_not_taken_for_one_whose_frames_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "RECONCILE_S", 0.05)
    async with world() as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        slow = Caller(made.service.app, reads=anyio.Event())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.call, PATH, STREAM)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            seen = len(scheduler.lives)
            await made.until(lambda: len(scheduler.lives) > seen + 10)
            scheduler.script.hold.set()  # type: ignore[union-attr]
            slow.reads.set()  # type: ignore[union-attr]
        assert events(slow.text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert len(scheduler.opened) == 1


async def test_an_open_that_is_refused_for_a_moment_is_tried_again(shared: World) -> None:
    shared.backend.tokenizer.refuse_open = ErrorInfo("busy", "busy")
    replies: list[Any] = []

    async def call() -> None:
        replies.append(await shared.post(PATH, BODY))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await shared.until(lambda: len(shared.backend.tokenizer.opened) == 2)
        shared.backend.tokenizer.refuse_open = None
    assert replies[0].status_code == 200
    assert shared.backend.scheduler.opened[0].attempt > 1


async def test_a_slow_client_is_cut_and_holds_nobody() -> None:
    async with world(quiet(byte_budget=4000)) as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(says=lambda order, child: "x" * 400, step=1, gap_s=0.001)
        slow = Caller(made.service.app, reads=anyio.Event())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.call, PATH, STREAM)
            await made.until(lambda: bool(scheduler.running))
            scheduler.script = Script()
            assert (await made.post(PATH, BODY)).status_code == 200  # others are not held up
            await made.until(lambda: not scheduler.running)
        assert made.gateway.core.live == {}
        assert "[DONE]" not in slow.text


async def test_a_finished_request_is_settled_before_its_client_has_read(shared: World) -> None:
    slow = Caller(shared.service.app, reads=anyio.Event())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.call, PATH, STREAM)
        await shared.until(lambda: len(shared.backend.scheduler.cancelled) == 1)
        assert (shared.gateway.admission.requests, shared.gateway.admission.held) == (0, 1)
        slow.reads.set()  # type: ignore[union-attr]
    assert events(slow.text)[-1]["choices"][0]["finish_reason"] == "stop"
    assert (len(shared.backend.scheduler.cancelled), shared.gateway.admission.held) == (1, 0)


async def test_a_client_that_does_not_read_is_cut_soon_after_its_deadline() -> None:
    async with world(quiet(request_timeout_s=0.2)) as made:
        slow = Caller(made.service.app, reads=anyio.Event())
        with anyio.fail_after(5.0):
            await slow.call(PATH, STREAM)
        assert made.gateway.core.live == {}


async def test_silence_on_a_stream_is_filled_with_comments() -> None:
    async with world(quiet(keep_alive_s=0.05)) as made:
        made.backend.scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        caller = Caller(made.service.app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.call, PATH, STREAM)
            await made.until(lambda: caller.text.count(": keep-alive\n\n") >= 2)
            made.backend.scheduler.script.hold.set()  # type: ignore[union-attr]
        assert events(caller.text.replace(": keep-alive\n\n", ""))[-1]["choices"][0]["finish_reason"] == "stop"


async def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    async with world() as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        replies: list[Any] = []

        async def call() -> None:
            replies.append(await made.post(PATH, BODY))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            made.context.drain.set()
            await made.until(lambda: made.gateway.backends.draining)
            async with made.client() as client:
                health = await client.get("/health")
                refused = await client.post(PATH, json=BODY)
            assert (health.status_code, health.json()["status"]) == (503, "draining")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            scheduler.script.hold.set()  # type: ignore[union-attr]
        assert replies[0].json()["choices"][0]["message"]["content"] == "Hello world"
        await made.until(lambda: not made.backend.scheduler.presence.peers(Role.GATEWAY))
        assert made.readiness[-1] is False


async def test_what_a_drain_has_no_time_for_ends_with_an_error() -> None:
    async with world(drain_s=0.2) as made:
        made.backend.scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        made_reply: list[Any] = []

        async def call() -> None:
            made_reply.append(await made.post(PATH, BODY | {"stream": True}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            made.context.drain.set()
        assert events(made_reply[0].text)[-1]["error"]["code"] == "service_unavailable"


def _opened(scheduler: FakeScheduler, count: int) -> bool:
    return len(scheduler.opened) == count


async def test_streams_that_have_begun_come_back_first_then_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_module, "CREDIT_BYTES", 1)  # one at a time
    async with world() as made:
        old = made.backend.scheduler
        new = FakeScheduler(made.backend.broker, made.backend.tokenizers, "sched9", 2)
        async with anyio.create_task_group() as tasks:
            for number, hold_after in enumerate((0, 0, 4, 4)):  # the first two wait for their first token
                old.script = Script(hold=anyio.Event(), hold_after=hold_after)
                tasks.start_soon(made.post, PATH, BODY)
                await made.until(partial(_opened, old, number + 1))
            await made.until(lambda: sum(live.completion_tokens for live in made.gateway.core.live.values()) == 8)
            old.scope.cancel()
            await tasks.start(new.run)
            await made.until(lambda: len(new.opened) == 4)
            tasks.cancel_scope.cancel()
    began = [order.rid for order in old.opened]
    assert [order.rid for order in new.opened] == [began[2], began[3], began[0], began[1]]
    assert all(order.accepted for order in new.opened)
    assert not any(order.accepted for order in old.opened)


async def test_a_new_leader_hears_at_once_that_all_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "RECONCILE_S", 600.0)
    async with world() as made:
        old = made.backend.scheduler
        old.script = Script(hold=anyio.Event(), hold_after=4)
        new = FakeScheduler(made.backend.broker, made.backend.tokenizers, "sched9", 2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.post, PATH, BODY)
            await made.until(lambda: any(live.completion_tokens == 4 for live in made.gateway.core.live.values()))
            old.scope.cancel()
            await tasks.start(new.run)
            await made.until(lambda: bool(new.lives and new.opened))
            assert [request.rid for request in new.lives[0].requests] == [new.opened[0].rid]
            tasks.cancel_scope.cancel()
