"""Two clients with keys of their own on one server: what is one's - requests, leases, cached prompts, errors - the other can't touch or see."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from phloem_proto.v1 import phloem_pb2 as pb
from phloem_proto.v1.phloem_pb2_grpc import PhloemStub

from .harness import Running, eventually, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
SECRET = "the password of alice's safe is 4711 and nobody else may know it, nor that she asked for it. "


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# clients\n{ALICE}\n{BOB}\n")
    options = [
        "--model",
        "tiny",
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--page-size",
        "16",
        "--api-keys-file",
        str(keys),
    ]
    with phloem("serve", *options) as started:
        yield started


@pytest.fixture
def alice(running: Running) -> Iterator[httpx.Client]:
    yield from client(running, ALICE)


@pytest.fixture
def bob(running: Running) -> Iterator[httpx.Client]:
    yield from client(running, BOB)


def client(running: Running, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, headers={"authorization": f"Bearer {key}"}, timeout=60) as made:
        yield made


def metadata(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def cached(who: httpx.Client, text: str, **rest: Any) -> int:
    """How much of a prompt was found in the cache, by what the reply says."""
    reply = who.post("/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 1, **rest})
    assert reply.status_code == 200, reply.text
    found: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_prompt_under_a_salt_is_found_under_that_salt_alone(alice: httpx.Client, bob: httpx.Client) -> None:
    assert cached(alice, SECRET, cache_salt="alice's") == 0
    assert cached(alice, SECRET, cache_salt="alice's") > 64
    for salt in ({}, {"cache_salt": "bob's"}, {"cache_salt": "alice"}, {"cache_salt": "", "extra_key": "alice's"}):
        assert cached(bob, SECRET, **salt) == 0
    pinned = bob.post("/pins", json={"text": SECRET, "cache_salt": "bob's own", "id": "probe"}).json()
    assert pinned["cached_tokens"] == 0
    assert bob.delete("/pins/probe").status_code == 200


def test_the_tree_shows_no_text_where_keys_tell_clients_apart(alice: httpx.Client, bob: httpx.Client) -> None:
    cached(alice, SECRET)
    seen = bob.get("/radix?edge_ids=64&max_nodes=2000")
    assert seen.json()["total_nodes"] > 0
    assert "password" not in seen.text
    assert all(node["text"] is None for node in seen.json()["nodes"])


def test_events_of_the_cache_tell_no_ids_where_keys_tell_clients_apart(running: Running, alice: httpx.Client) -> None:
    cached(alice, SECRET)
    with grpc.insecure_channel(running.grpc) as channel:
        call = PhloemStub(channel).KvEvents(pb.KvEventsRequest(snapshot=True), metadata=metadata(BOB))  # type: ignore[no-untyped-call]
        batch = next(iter(call))
        stored = [event.block_stored for event in batch.events if event.WhichOneof("event") == "block_stored"]
        assert stored
        assert not any(block.token_ids for block in stored)
        call.cancel()


def test_leases_are_their_owners(alice: httpx.Client, bob: httpx.Client) -> None:
    made = alice.post("/pins", json={"text": SECRET, "id": "mine", "ttl_s": 60})
    assert made.status_code == 200
    assert bob.get("/pins").json()["data"] == []
    for method, path in (("DELETE", "/pins/{}"), ("POST", "/pins/{}")):
        body = {"json": {"ttl_s": 1}} if method == "POST" else {}
        hers, nobodys = (bob.request(method, path.format(ident), **body) for ident in ("mine", "none"))  # type: ignore[arg-type]
        assert hers.status_code == nobodys.status_code == 400
        assert hers.json() == nobodys.json()  # not even that it exists
    (kept,) = alice.get("/pins").json()["data"]
    assert kept["id"] == "mine"
    assert kept["ttl_s"] > 50
    own = bob.post("/pins", json={"text": "something else of bob's, long enough for a page or two", "id": "mine"})
    assert own.status_code == 200  # the same name is another lease
    assert [(pin["id"], pin["tokens"]) for pin in alice.get("/pins").json()["data"]] == [("mine", kept["tokens"])]
    assert bob.delete("/pins/mine").status_code == alice.delete("/pins/mine").status_code == 200


def generate(running: Running, key: str, ident: str, tokens: int) -> Any:
    """A stream over gRPC with a request id of its own; returns the channel's call."""
    channel = grpc.insecure_channel(running.grpc)
    request = pb.GenerateRequest(
        text="a story: ",
        request_id=ident,
        sampling=pb.SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0),
    )
    return PhloemStub(channel).Generate(request, metadata=metadata(key))  # type: ignore[no-untyped-call]


def test_an_abort_ends_requests_of_its_own_key_alone(running: Running) -> None:
    outcome: dict[str, str] = {}

    def read(key: str, call: Any) -> None:
        try:
            outcome[key] = [reply.complete.finish_reason for reply in call][-1]
        except grpc.RpcError as error:
            outcome[key] = error.code().name

    calls = {key: generate(running, key, "the same id", 1500) for key in (ALICE, BOB)}
    threads = [threading.Thread(target=read, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    try:
        with httpx.Client(base_url=running.url, headers={"authorization": f"Bearer {ALICE}"}) as http:

            def live() -> bool:
                text = http.get("/metrics").text
                return "phloem_gateway_requests_live 2.0" in text

            eventually(live, 20, "not both run")
        with grpc.insecure_channel(running.grpc) as channel:
            stub = PhloemStub(channel)  # type: ignore[no-untyped-call]
            assert stub.Abort(pb.AbortRequest(request_ids=["another"]), metadata=metadata(BOB)).aborted == 0
            assert stub.Abort(pb.AbortRequest(request_ids=["the same id"]), metadata=metadata(BOB)).aborted == 1
        threads[1].join(20)
        assert outcome == {BOB: "abort"}
        assert threads[0].is_alive()  # hers goes on
    finally:
        for call in calls.values():
            call.cancel()
        for thread in threads:
            thread.join(20)


def test_errors_tell_a_client_of_its_own_request_alone(alice: httpx.Client, bob: httpx.Client) -> None:
    hers = {"type": "object", "properties": {"her-secret-field": {"$ref": "#/nowhere"}}}
    his = {"type": "object", "properties": {"his": {"$ref": "#/nowhere"}}}
    replies = []
    for who, schema in ((alice, hers), (bob, his), (alice, hers)):
        body = {
            "model": "tiny",
            "prompt": "x",
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        }
        reply = who.post("/v1/completions", json=body, headers={"x-request-id": "same"})
        assert reply.status_code == 400
        assert reply.headers["x-request-id"] == "same"
        replies.append(reply)
    assert "secret" not in replies[1].text
    for who in (alice, bob):
        for path in ("/pins/unknown", "/nothing/here"):
            assert "secret" not in who.delete(path).text


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", f"Basic {ALICE}", f"Bearer {ALICE[:-1]}", f"Bearer {ALICE}x", f"Bearer {ALICE},{BOB}",
     "Bearer # clients", f"bearer{ALICE}", "Bearer \xff\xfe"],
)  # fmt: skip
def test_without_a_key_of_the_file_nothing_is_done_or_shown(running: Running, authorization: str | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    with httpx.Client(base_url=running.url, headers=headers) as http:
        for method, path in (
            ("POST", "/v1/completions"), ("POST", "/generate"), ("GET", "/v1/models"), ("GET", "/radix"), ("GET", "/pins"),
            ("POST", "/pins"), ("DELETE", "/pins/x"), ("POST", "/flush_cache"), ("POST", "/tokenize"), ("GET", "/metrics"),
        ):  # fmt: skip
            reply = http.request(method, path)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), path
        assert http.get("/health").status_code == 200
    if authorization is None or authorization.isascii():
        told = () if authorization is None else (("authorization", authorization),)
        with grpc.insecure_channel(running.grpc) as channel:
            stub = PhloemStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as raised:
                stub.ListPins(pb.ListPinsRequest(), metadata=told)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
