"""``GET /radix`` and ``GetRadix``: the tree as clients may see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from phloem_bus.errors import ConfigError
from phloem_gateway.config import GatewayConfig
from phloem_proto import messages as m

from .backend import MODEL
from .cache_backend import PAGE, FakeCache, node, worker
from .grpc_client import Client, trailing
from .openai_schemas import check
from .world import World, world

pytestmark = pytest.mark.anyio

TREE = m.RadixReply(
    page_size=PAGE,
    nodes=(
        node(
            -1, "You are a helpful", tokens=40, depth=40, copies=(m.RadixCopy(0, 2, 9), m.RadixCopy(1, 0, 1)), hidden=3
        ),
        node(0, "tree", depth=44, wanted=2, pinned=1),
        node(-1, "", tokens=8, depth=8, salted=True, copies=(m.RadixCopy(1, 0, 4),)),
    ),
    workers=(worker("gpu-a", 30, 1000, 250), worker("gpu-b", 10)),
    total_nodes=6,
    total_tokens=99,
    namespaces=2,
    waiting=5,
)


@pytest.fixture(autouse=True)
def _tree(cache: FakeCache) -> None:
    cache.radix = TREE


async def get(made: World, query: str = "", **options: Any) -> httpx.Response:
    async with made.client() as client:
        return await client.get(f"/radix{query}", **options)


async def test_the_tree_with_text_and_each_workers_share(shared: World, cache: FakeCache) -> None:
    asked: list[m.Detokenize] = []
    shared.backend.tokenizer.node.on(m.Detokenize, lambda received: asked.append(received.message))
    shown = (await get(shared)).json()
    assert [(len(one.ids), one.skip_special_tokens) for one in asked] == [(2, False)]
    assert {key: shown[key] for key in ("model", "page_size", "total_nodes", "total_tokens", "namespaces", "waiting")} == {
        "model": MODEL, "page_size": PAGE, "total_nodes": 6, "total_tokens": 99, "namespaces": 2, "waiting": 5,
    }  # fmt: skip
    first, second, salted = shown["nodes"]
    assert first == {
        "id": 0, "parent": -1, "tokens": 40, "depth": 40, "wanted": 0, "pinned": 0, "hidden": 3, "text": "You are a helpful…", "salted": False,
        "workers": {"gpu-a": {"locks": 2, "hits": 9}, "gpu-b": {"locks": 0, "hits": 1}},
    }  # fmt: skip
    assert (second["text"], second["parent"], second["wanted"], second["pinned"], second["workers"]) == (
        "tree",
        0,
        2,
        1,
        {},
    )
    assert (salted["text"], salted["salted"]) == (None, True)
    assert [(one["instance"], one["share"], one["hit_share"]) for one in shown["workers"]] == [
        ("gpu-a", 0.75, 0.25),
        ("gpu-b", 0.25, 0.0),
    ]
    one = shown["workers"][0]
    assert [one[f"pages{part}"] for part in ("", "_free", "_held", "_cached", "_locked")] == [100, 60, 10, 30, 5]
    assert cache.looked == [m.Radix(200, 16)]


async def test_an_empty_tree(shared: World, cache: FakeCache) -> None:
    cache.radix = m.RadixReply(page_size=PAGE, workers=(worker("gpu-a"),))
    shown = (await get(shared, "?max_nodes=1&edge_ids=64")).json()
    assert (shown["nodes"], shown["workers"][0]["share"]) == ([], 0.0)
    assert cache.looked == [m.Radix(1, 64)]


async def test_a_character_that_is_cut_is_not_shown_and_long_edges_are_shortened(
    shared: World, cache: FakeCache
) -> None:
    cut = node(-1, "née", tokens=9)
    cut = m.RadixNode(cut.parent, cut.tokens, cut.depth, 0, cut.ids[:8])
    cache.radix = m.RadixReply(page_size=PAGE, nodes=(cut, node(-1, "x" * 400)))
    texts = [one["text"] for one in (await get(shared)).json()["nodes"]]
    assert texts == ["n…", "x" * 256 + "…"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("max_nodes=0", "max_nodes"),
        ("max_nodes=2001", "max_nodes"),
        ("max_nodes=-1", "max_nodes"),
        ("max_nodes=", "max_nodes"),
        ("max_nodes=ten", "max_nodes"),
        ("max_nodes=5.0", "max_nodes"),
        ("max_nodes=1e3", "max_nodes"),
        ("max_nodes=%D9%A3", "max_nodes"),
        ("max_nodes=" + "9" * 5000, "max_nodes"),
        ("max_nodes=5&max_nodes=0", "max_nodes"),
        ("edge_ids=-1", "edge_ids"),
        ("edge_ids=65", "edge_ids"),
        ("edge_ids=true", "edge_ids"),
        ("&".join(f"a{i}=1" for i in range(40)), "query"),
    ],
)
async def test_bad_parameters(shared: World, cache: FakeCache, schemas: dict[str, Any], query: str, param: str) -> None:
    refused = await get(shared, f"?{query}")
    check(schemas, "ErrorResponse", refused.json())
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert len(error["message"]) < 300
    assert cache.looked == []


async def test_the_tree_over_grpc_is_the_same(shared: World, cache: FakeCache, client: Client) -> None:
    shown = await client.method("GetRadix")(client.message("GetRadixRequest", max_nodes=7, edge_ids=5))
    assert cache.looked == [m.Radix(7, 5)]
    assert (shown.model, shown.page_size, shown.total_tokens, shown.waiting) == (MODEL, PAGE, 99, 5)
    first, second, salted = shown.nodes
    assert (first.text, first.hidden, first.workers["gpu-a"].locks, first.workers["gpu-a"].hits) == (
        "You are a helpful…", 3, 2, 9,
    )  # fmt: skip
    assert (second.parent, second.wanted, second.pinned, dict(second.workers)) == (0, 2, 1, {})
    assert (salted.salted, salted.HasField("text")) == (True, False)
    assert [round(one.share, 2) for one in shown.workers] == [0.75, 0.25]
    for fields, param in (
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": 2001}, "max_nodes"),
        ({"edge_ids": 65}, "edge_ids"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.method("GetRadix")(client.message("GetRadixRequest", **fields))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert trailing(raised.value)["phloem-error-param"] == param


async def test_a_scheduler_that_refuses_or_is_gone_is_503(shared: World, cache: FakeCache) -> None:
    cache.radix = m.RadixReply(error=m.ErrorInfo("busy", "too many look at once", retry_after_ms=2000))
    refused = await get(shared)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")


async def test_without_a_scheduler() -> None:
    async with world(schedulers=0, wait=False) as made:
        refused = await get(made)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
    assert refused.headers["retry-after"] == "1"


def configured(keys: Path | None, **settings: Any) -> GatewayConfig:
    return GatewayConfig(http_port=None, grpc_port=0, api_keys_file=keys, **settings)


@pytest.mark.parametrize(
    ("setting", "with_keys", "status", "text"),
    [
        ("auto", False, 200, "tree"),
        ("auto", True, 200, None),
        ("text", True, 200, "tree"),
        ("shape", False, 200, None),
        ("off", False, 404, None),
    ],
)
async def test_what_is_shown_is_a_setting(
    tmp_path: Path, setting: str, with_keys: bool, status: int, text: str | None
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    headers = {"authorization": "Bearer alpha"}
    async with world(configured(keys if with_keys else None, radix=setting)) as made:
        cache = FakeCache.attach(made.backend.scheduler)
        cache.radix = TREE
        shown = await get(made, headers=headers)
        assert shown.status_code == status
        client = await Client.connect(made.service.grpc_port or 0)
        call = client.method("GetRadix")(
            client.message("GetRadixRequest"), metadata=[("authorization", "Bearer alpha")]
        )
        if status == 404:
            assert (shown.json()["error"]["code"], cache.looked) == ("not_found", [])
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        else:
            assert [one["text"] for one in shown.json()["nodes"]][1] == text
            assert (await call).nodes[1].HasField("text") == (text is not None)
            assert [wanted.edge_ids for wanted in cache.looked] == [16 if text else 0] * 2
            assert bool(made.backend.tokenizer.encoded) is False
        if with_keys:
            assert (await get(made)).status_code == 401
        await client.close()


def test_an_unknown_view_is_refused_at_start() -> None:
    with pytest.raises(ConfigError) as raised:
        GatewayConfig(radix="everything")
    assert raised.value.setting == "--radix"
