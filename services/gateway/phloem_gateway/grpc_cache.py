"""The gRPC methods of the prefix cache: leases, the tree, and its changes as they happen."""

from __future__ import annotations

import math
import struct
import time

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import KvEvent, KvEvents, PinInfo
from phloem_proto.v1 import phloem_pb2 as pb

from . import checks, grpc_convert, parse_pins, radix_view
from .checks import ModelFacts
from .errors import ApiError
from .grpc_guard import Caller, Context, Guarded, guarded
from .parse_openai import known_model
from .parse_pins import PinWish

MAX_WORKER_FILTER = 256
"""Instances that one stream may name."""
MAX_NAME_CHARS = 64
"""Characters of an instance's name."""


class CacheMethods(Guarded):
    """Methods about the prefix cache."""

    @guarded
    async def Pin(self, request: pb.PinRequest, context: Context, caller: Caller) -> pb.PinResponse:
        wish = pin_wish(request, self.gateway.facts)
        made = await self.gateway.pins.pin(caller.owner, wish, caller.request_id, context.time_remaining())
        return pb.PinResponse(
            pin=pin_info(made.info), prompt_tokens=made.prompt_tokens, cached_tokens=made.cached_tokens
        )

    @guarded
    async def RenewPin(self, request: pb.RenewPinRequest, context: Context, caller: Caller) -> pb.PinInfo:
        ttl_ms = parse_pins.ttl_ms("ttl_seconds", request.ttl_seconds if request.HasField("ttl_seconds") else None)
        return pin_info(await self.gateway.pins.renew(caller.owner, parse_pins.pin_id(request.id), ttl_ms))

    @guarded
    async def Unpin(self, request: pb.UnpinRequest, context: Context, caller: Caller) -> pb.PinInfo:
        return pin_info(await self.gateway.pins.end(caller.owner, parse_pins.pin_id(request.id)))

    @guarded
    async def ListPins(self, request: pb.ListPinsRequest, context: Context, caller: Caller) -> pb.ListPinsResponse:
        return pb.ListPinsResponse(pins=[pin_info(info) for info in await self.gateway.pins.list(caller.owner)])

    @guarded
    async def GetRadix(self, request: pb.GetRadixRequest, context: Context, caller: Caller) -> pb.GetRadixResponse:
        gateway = self.gateway
        wanted = radix_view.wish(
            request.max_nodes if request.HasField("max_nodes") else None,
            request.edge_ids if request.HasField("edge_ids") else None,
        )
        seen = await radix_view.look(
            gateway.backends, gateway.texts, wanted, gateway.config.radix_view, self.deadline(context)
        )
        shown = radix_view.to_json(seen)  # the same names: an unset text is left out
        return pb.GetRadixResponse(**shown)

    @guarded
    async def KvEvents(self, request: pb.KvEventsRequest, context: Context, caller: Caller) -> None:
        view = self.gateway.config.radix_view
        if view == "off":
            raise ApiError("not_found", "This server does not show its cache.")
        if len(request.workers) > MAX_WORKER_FILTER:
            raise checks.invalid("workers", f"at most {MAX_WORKER_FILTER} instances", len(request.workers))
        if any(len(name) > MAX_NAME_CHARS for name in request.workers):
            raise checks.invalid("workers", f"names of at most {MAX_NAME_CHARS} characters")
        with self.gateway.kv.reader(request.workers, snapshot=request.snapshot) as reader:
            await reader.opened()
            with reader.scope:
                await context.send_initial_metadata((("x-request-id", caller.request_id),))
                while True:
                    await context.write(kv_batch(await reader.batch(), with_ids=view == "text"))
            reader.check()


def pin_wish(request: pb.PinRequest, facts: ModelFacts) -> PinWish:
    """Check a request. Raises `ApiError`."""
    known_model(request.model if request.HasField("model") else None, facts)
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise ApiError("missing_required_parameter", "Give one of 'text', 'chat' and 'token_ids'.", param="prompt")
    generation = parse_pins.prefill(
        {"text": "text", "chat": "chat.messages", "token_ids": "token_ids.ids"}[kind],
        text=checks.prompt_text("text", request.text) if kind == "text" else None,
        messages=grpc_convert.chat(request.chat) if kind == "chat" else (),
        ids=checks.prompt_ids("token_ids.ids", list(request.token_ids.ids), facts) if kind == "token_ids" else None,
        template_kwargs=grpc_convert.template_kwargs(request.chat) if kind == "chat" else "",
        salt=checks.salt("cache_salt", request.cache_salt),
        extra=checks.salt("extra_key", request.extra_key),
    )
    ttl_ms = parse_pins.ttl_ms("ttl_seconds", request.ttl_seconds if request.HasField("ttl_seconds") else None)
    return PinWish(generation, ttl_ms, parse_pins.pin_id(request.id) if request.HasField("id") else None)


def pin_info(info: PinInfo) -> pb.PinInfo:
    """A lease in the proto's terms."""
    left_s = info.ttl_ms / 1000
    return pb.PinInfo(
        id=info.pin,
        tokens=info.tokens,
        ttl_seconds=left_s,
        expires_at=math.floor(time.time() + left_s),
        worker=info.worker,
    )


def kv_batch(batch: KvEvents, *, with_ids: bool) -> pb.KvEventBatch:
    """A batch in the proto's terms; ``with_ids`` tells what blocks say."""
    return pb.KvEventBatch(
        worker=batch.worker,
        incarnation=batch.incarnation,
        seq=batch.seq,
        block_size=batch.block_size,
        events=[_event(event, batch.block_size, with_ids) for event in batch.events],
        kind=pb.KvEventBatch.Kind.Name(batch.snapshot),
    )


def _event(event: KvEvent, block_size: int, with_ids: bool) -> pb.KvEvent:
    hashes = struct.unpack(f"<{len(event.hashes) // 8}Q", event.hashes)
    if event.kind == "removed":
        return pb.KvEvent(block_removed=pb.BlockRemoved(block_hashes=hashes))
    if event.kind == "cleared":
        return pb.KvEvent(all_blocks_cleared=pb.AllBlocksCleared())
    stored = pb.BlockStored(
        block_hashes=hashes,
        parent_block_hash=event.parent or None,
        token_ids=unpack_ids(event.ids) if with_ids else (),
        block_size=block_size,
    )
    return pb.KvEvent(block_stored=stored)
