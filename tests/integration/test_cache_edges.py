"""Seeing, keeping and following the prefix cache of a real server: /radix, /pins, KvEvents, `phloem tree`."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest

from phloem_proto.v1 import phloem_pb2 as pb
from phloem_proto.v1.phloem_pb2_grpc import PhloemStub

from .harness import BIN, Running, complete, eventually, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PAGE = 16
POOL = 1024
"""Tokens that the worker's cache holds."""


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    sizes = ["--kv-tokens", str(POOL), "--page-size", str(PAGE)]
    with phloem("serve", "--model", "tiny", "--dtype", "float32", "--threads", "1", *sizes) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(running: Running) -> None:
    """No leases, and nothing cached."""
    for pin in httpx.get(f"{running.url}/pins").json()["data"]:
        httpx.delete(f"{running.url}/pins/{pin['id']}").raise_for_status()
    httpx.post(f"{running.url}/flush_cache?timeout=10", timeout=20).raise_for_status()


def prompt(name: str, tokens: int = 256) -> str:
    """A text of this many tokens (the tiny model's are bytes) that shares nothing with those of other names."""
    return "".join(f"{name} line {i}. " for i in range(tokens))[:tokens]


def cached(running: Running, text: str, **options: Any) -> int:
    """How much of a prompt is found when it comes again."""
    reply = complete(running, text=text, sampling_params={"max_new_tokens": 0}, **options)
    found: int = reply["meta_info"]["cached_tokens"]
    return found


def flood(running: Running, name: str) -> None:
    """Other prompts, several times as much as the cache holds."""
    for i in range(24):
        cached(running, prompt(f"{name} {i}", 200))


def radix(running: Running, query: str = "") -> Any:
    reply = httpx.get(f"{running.url}/radix{query}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_pinned_prompt_outlives_a_flood_and_another_does_not(running: Running) -> None:
    kept, other = prompt("kept"), prompt("other")
    made = httpx.post(f"{running.url}/pins", json={"text": kept, "id": "mine", "ttl_s": 120}, timeout=60).json()
    assert (made["tokens"], made["prompt_tokens"], made["cached_tokens"]) == (256, 256, 0)
    assert cached(running, other) == 0
    assert cached(running, other) == 256 - PAGE
    flood(running, "first")
    assert (cached(running, kept), cached(running, other)) == (256 - PAGE, 0)
    (listed,) = httpx.get(f"{running.url}/pins").json()["data"]
    assert (listed["id"], listed["tokens"], listed["worker"]) == ("mine", 256, made["worker"])
    assert 0 < listed["ttl_s"] < 120
    renewed = httpx.post(f"{running.url}/pins/mine", json={"ttl_s": 1800}).json()
    assert (renewed["ttl_s"], renewed["tokens"]) == (1800, 256)
    assert httpx.delete(f"{running.url}/pins/mine").json()["deleted"] is True
    nothing_held(running)
    flood(running, "second")
    assert cached(running, kept) == 0


def test_a_lease_ends_by_itself(running: Running) -> None:
    httpx.post(f"{running.url}/pins", json={"text": prompt("brief"), "ttl_s": 1}, timeout=60).raise_for_status()
    eventually(lambda: httpx.get(f"{running.url}/pins").json()["data"] == [], 10, "the lease is still there")
    flood(running, "third")
    assert cached(running, prompt("brief")) == 0


def test_leases_stay_within_their_share_and_errors_name_the_field(running: Running) -> None:
    replies = [
        httpx.post(f"{running.url}/pins", json={"text": prompt(f"big {i}", 512), "id": f"big{i}"}, timeout=60)
        for i in range(3)
    ]
    assert replies[0].status_code == 200
    refused = replies[-1]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    unknown = httpx.delete(f"{running.url}/pins/nobody")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "id")
    short = httpx.post(f"{running.url}/pins", json={"text": "short"})
    assert (short.status_code, short.json()["error"]["param"]) == (400, "text")


def test_pins_of_one_id_at_once_keep_what_each_says_and_one_is_left(running: Running) -> None:
    sizes = [64, 80, 96, 112] * 3

    def pin(number: int) -> tuple[int, int]:
        body = {"text": prompt(f"at once {number}", sizes[number]), "id": "same"}
        reply = httpx.post(f"{running.url}/pins", json=body, timeout=60)
        return reply.status_code, reply.json()["tokens"]

    with ThreadPoolExecutor(len(sizes)) as pool:
        assert list(pool.map(pin, range(len(sizes)))) == [(200, size) for size in sizes]
    (left,) = httpx.get(f"{running.url}/pins").json()["data"]
    assert left["tokens"] in sizes
    (worker,) = radix(running)["workers"]
    assert worker["pages_locked"] * PAGE == left["tokens"]


def test_a_pin_whose_new_prompt_is_refused_keeps_the_old_one(running: Running) -> None:
    httpx.post(f"{running.url}/pins", json={"text": prompt("old"), "id": "mine"}, timeout=60).raise_for_status()
    large = httpx.post(f"{running.url}/pins", json={"text": prompt("large", 600), "id": "mine"}, timeout=60)
    short = httpx.post(f"{running.url}/pins", json={"text": "short", "id": "mine"}, timeout=60)
    assert (large.status_code, short.status_code) == (429, 400)
    assert [(pin["id"], pin["tokens"]) for pin in httpx.get(f"{running.url}/pins").json()["data"]] == [("mine", 256)]
    flood(running, "fifth")
    assert cached(running, prompt("old")) == 256 - PAGE


def test_both_halves_of_the_namespace_keep_prompts_apart(running: Running) -> None:
    text = prompt("apart")
    spaces: list[dict[str, str]] = [{}, {"cache_salt": "a"}, {"extra_key": "a"}, {"cache_salt": "a", "extra_key": "a"}]
    assert [cached(running, text, **space) for space in spaces] == [0] * 4
    assert [cached(running, text, **space) for space in spaces] == [256 - PAGE] * 4
    shown = radix(running)
    assert shown["namespaces"] >= 4
    assert sorted(node["text"] is None for node in shown["nodes"]) == [False, False, True, True]
    assert all(node["salted"] == (node["text"] is None) for node in shown["nodes"])


def test_the_tree_shows_texts_hits_leases_and_the_worker(running: Running) -> None:
    stem = prompt("stem", 64)
    pinned = httpx.post(f"{running.url}/pins", json={"text": f"{stem} rest", "id": "stem"}, timeout=60).json()
    assert (pinned["tokens"], pinned["prompt_tokens"]) == (64, 69)  # whole pages
    for end in ("left ", "right "):
        cached(running, f"{stem}{end * 8}!")
    shown = radix(running, "?edge_ids=8")
    (root,) = [node for node in shown["nodes"] if node["parent"] == -1]
    assert (root["text"], root["tokens"], root["depth"]) == ("stem lin…", 64, 64)
    (worker,) = shown["workers"]
    assert root["workers"][worker["instance"]]["hits"] == 2
    assert root["pinned"] == 1
    ends = [node for node in shown["nodes"] if node["parent"] == root["id"]]
    assert sorted(node["text"][:4] for node in ends) == ["left", "righ"]
    assert (shown["model"], shown["page_size"], shown["total_nodes"]) == ("tiny", PAGE, 3)
    assert shown["total_tokens"] == sum(node["tokens"] for node in shown["nodes"]) == worker["pages_cached"] * PAGE
    assert worker["pages_free"] + worker["pages_held"] + worker["pages_cached"] == worker["pages"] == POOL // PAGE
    assert (worker["share"], 0 < worker["hit_share"] < 1) == (1.0, True)
    fewer = radix(running, "?max_nodes=1&edge_ids=0")
    assert [(node["text"], node["hidden"]) for node in fewer["nodes"]] == [(None, 2)]


def test_phloem_tree_draws_it(running: Running) -> None:
    cached(running, prompt("drawn", 70))
    command = [str(BIN / "phloem"), "tree", "--once", "--url", running.url]
    environment = os.environ | {"COLUMNS": "150"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert "tiny  pages of 16 tokens · 1 node · 64 tokens cached" in done.stdout
    assert "“drawn line 0. dr…”  64 tokens" in done.stdout
    assert done.stderr == ""


class Follower:
    """A router's view of the caches, kept from the events alone."""

    def __init__(self) -> None:
        self.blocks: dict[str, dict[int, tuple[int, ...]]] = {}
        self.removed = 0
        self.seqs: list[int] = []

    def apply(self, batch: Any) -> None:
        mine = self.blocks.setdefault(batch.worker, {})
        if batch.kind == pb.KvEventBatch.SNAPSHOT:
            mine.clear()
        self.seqs.append(batch.seq)
        for event in batch.events:
            match event.WhichOneof("event"):
                case "block_stored":
                    stored, size = event.block_stored, event.block_stored.block_size
                    for i, block in enumerate(stored.block_hashes):
                        assert block not in mine
                        mine[block] = tuple(stored.token_ids[i * size : (i + 1) * size])
                case "block_removed":
                    for block in event.block_removed.block_hashes:
                        del mine[block]
                        self.removed += 1
                case _:
                    mine.clear()

    @property
    def count(self) -> int:
        return sum(map(len, self.blocks.values()))

    def texts(self) -> set[str]:
        return {bytes(ids).decode() for blocks in self.blocks.values() for ids in blocks.values()}


@contextmanager
def following(running: Running, **fields: Any) -> Iterator[Follower]:
    """Follow the caches; what was published before is in once `eventually` says so."""
    follower, failures = Follower(), list[str]()
    with grpc.insecure_channel(running.grpc) as channel:
        call = PhloemStub(channel).KvEvents(pb.KvEventsRequest(**fields))  # type: ignore[no-untyped-call]

        def read() -> None:
            try:
                for batch in call:
                    follower.apply(batch)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    failures.append(str(error))
            except (AssertionError, KeyError) as error:
                failures.append(repr(error))

        assert dict(call.initial_metadata())["x-request-id"]
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield follower
        finally:
            call.cancel()
            reader.join(10)
    assert failures == []


def pages_cached(running: Running) -> int:
    return sum(worker["pages_cached"] for worker in radix(running)["workers"])


def test_events_tell_what_is_stored_and_removed(running: Running) -> None:
    before = prompt("before", 64)
    cached(running, before)
    with following(running, snapshot=True) as follower:
        eventually(lambda: follower.count == 4, 10, "the snapshot")
        assert "".join(sorted(follower.texts(), key=before.index)) == before
        with following(running) as late:
            cached(running, prompt("later", 32))
            eventually(lambda: (follower.count, late.count) == (6, 2), 10, "what was stored")
            assert "".join(sorted(late.texts())) == "".join(sorted(follower.texts() - set(blocks(before))))
        flood(running, "fourth")
        eventually(lambda: follower.count == pages_cached(running), 10, "blocks after a flood")
        assert follower.removed > POOL // PAGE
        assert follower.seqs == list(range(follower.seqs[0], follower.seqs[0] + len(follower.seqs)))
        httpx.post(f"{running.url}/flush_cache?timeout=10", timeout=20).raise_for_status()
        eventually(lambda: follower.count == 0, 10, "blocks after a flush")


def blocks(text: str) -> list[str]:
    """A text's pages."""
    return [text[i : i + PAGE] for i in range(0, len(text), PAGE)]


def test_pins_and_the_tree_over_grpc(running: Running) -> None:
    with grpc.insecure_channel(running.grpc) as channel:
        stub = PhloemStub(channel)  # type: ignore[no-untyped-call]
        made = stub.Pin(pb.PinRequest(text=prompt("grpc", 70), id="grpc", ttl_seconds=60))
        assert (made.pin.tokens, made.prompt_tokens) == (64, 70)
        shown = stub.GetRadix(pb.GetRadixRequest(edge_ids=4))
        assert [(node.text, node.tokens, node.pinned) for node in shown.nodes] == [("grpc…", 64, 1)]
        assert stub.RenewPin(pb.RenewPinRequest(id="grpc", ttl_seconds=30)).ttl_seconds == 30
        assert [pin.id for pin in stub.ListPins(pb.ListPinsRequest()).pins] == ["grpc"]
        assert stub.Unpin(pb.UnpinRequest(id="grpc")).tokens == 64
        with pytest.raises(grpc.RpcError) as raised:
            stub.Unpin(pb.UnpinRequest(id="grpc"))
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_over_a_broker_that_lets_each_role_hear_its_own() -> None:
    sizes = {"PHLOEM_MODEL": "tiny", "PHLOEM_DTYPE": "float32", "PHLOEM_KV_TOKENS": str(POOL), "PHLOEM_THREADS": "1"}
    with phloem("up", env=sizes) as started, following(started, snapshot=True) as follower:
        made = httpx.post(f"{started.url}/pins", json={"text": prompt("kept"), "id": "mine"}, timeout=60).json()
        flood(started, "other")
        assert cached(started, prompt("kept")) == made["tokens"] - PAGE == 256 - PAGE
        eventually(lambda: follower.count == pages_cached(started) > 0, 10, "blocks over NATS")
