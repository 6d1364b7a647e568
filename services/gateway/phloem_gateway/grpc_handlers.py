"""The gRPC methods. Thin: checks and work are the gateway's; here are only conversions and status codes."""

from __future__ import annotations

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.subjects import Role
from phloem_proto.v1 import phloem_pb2 as pb

from . import checks, grpc_convert
from .answer import Answer, failure
from .errors import ApiError
from .grpc_cache import CacheMethods
from .grpc_guard import Caller, Context, guarded, is_own_id
from .http_native import MAX_FLUSH_S, flush
from .limits import MAX_REQUEST_ID_CHARS
from .parse_openai import known_model
from .serving import SlowClient


class Servicer(CacheMethods):
    """``phloem.v1.Phloem``."""

    @guarded
    async def Generate(self, request: pb.GenerateRequest, context: Context, caller: Caller) -> None:
        gateway = self.gateway
        gateway.check_room()
        wanted = grpc_convert.generation(request, gateway.facts, max_choices=gateway.config.max_choices)
        self._check_id(request, caller.owner)
        async with gateway.answer((wanted,), *caller, context.time_remaining()) as answer:
            await answer.start()
            with answer.scope:
                await context.send_initial_metadata((("x-request-id", caller.request_id),))
                await _stream(answer, context, caller.request_id)
            if answer.scope.cancelled_caught:
                raise SlowClient

    def _check_id(self, request: pb.GenerateRequest, owner: str) -> None:
        if not request.HasField("request_id"):
            return
        if not is_own_id(request.request_id):
            raise checks.invalid("request_id", f"1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters")
        if self.gateway.has_call(owner, request.request_id):
            raise ApiError("duplicate_request_id", "A request with this id is live.", param="request_id")

    @guarded
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context, caller: Caller) -> pb.TokenizeResponse:
        known_model(request.model if request.HasField("model") else None, self.gateway.facts)
        kind = request.WhichOneof("input")
        if kind is None:
            raise ApiError("missing_required_parameter", "Give one of 'text' and 'chat'.", param="input")
        ids, _ = await self.gateway.texts.encode(
            (request.text,) if kind == "text" else (),
            grpc_convert.chat(request.chat) if kind == "chat" else (),
            add_special_tokens=request.add_special_tokens or not request.HasField("add_special_tokens"),
            template_kwargs=grpc_convert.template_kwargs(request.chat) if kind == "chat" else "",
            deadline=self.deadline(context),
            params={"texts": "text", "messages": "chat.messages"},
        )
        return pb.TokenizeResponse(token_ids=unpack_ids(ids[0]))

    @guarded
    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context, caller: Caller
    ) -> pb.DetokenizeResponse:
        facts = self.gateway.facts
        known_model(request.model if request.HasField("model") else None, facts)
        packed = pack_ids(checks.token_ids("token_ids", list(request.token_ids), facts))
        texts = await self.gateway.texts.decode(
            (packed,), skip_special_tokens=request.skip_special_tokens, deadline=self.deadline(context)
        )
        return pb.DetokenizeResponse(text=texts[0])

    @guarded
    async def Abort(self, request: pb.AbortRequest, context: Context, caller: Caller) -> pb.AbortResponse:
        return pb.AbortResponse(aborted=sum(self.gateway.abort(caller.owner, ident) for ident in request.request_ids))

    @guarded
    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context, caller: Caller
    ) -> pb.GetModelInfoResponse:
        facts = self.gateway.facts
        leader = self.gateway.backends.leader()
        profiles = [] if leader is None else [leader.profile]
        profiles += [peer.profile for peer in self.gateway.backends.presence.peers(Role.TOKENIZER)]
        return pb.GetModelInfoResponse(
            model=facts.name,
            context_length=facts.context_length,
            vocab_size=facts.vocab_size,
            model_digest=next((p.model_digest for p in profiles if p.model_digest), ""),
            tokenizer_digest=next((p.tokenizer_digest for p in profiles if p.tokenizer_digest), ""),
        )

    @guarded
    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context, caller: Caller) -> pb.GetLoadsResponse:
        shown = [
            pb.SchedulerLoad(
                instance=peer.instance,
                leading=peer.term > 0,
                workers=peer.load.workers,
                running_requests=peer.load.running,
                waiting_requests=peer.load.waiting,
                waiting_uncached_tokens=peer.load.waiting_tokens,
                pages_total=peer.load.pages_total,
                pages_free=peer.load.pages_free,
                pages_cached=peer.load.pages_cached,
                pages_used=peer.load.pages_used,
            )
            for peer in self.gateway.backends.presence.peers(Role.SCHEDULER)
        ]
        return pb.GetLoadsResponse(schedulers=shown, gateway_live_requests=len(self.gateway.core.live))

    @guarded
    async def FlushCache(
        self, request: pb.FlushCacheRequest, context: Context, caller: Caller
    ) -> pb.FlushCacheResponse:
        timeout_s = checks.within("timeout_seconds", request.timeout_seconds, 0.0, MAX_FLUSH_S, 0.0)
        return pb.FlushCacheResponse(flushed_pages=await flush(self.gateway, timeout_s))


async def _stream(answer: Answer, context: Context, ident: str) -> None:
    """Write chunks and completions until every choice has ended. Raises `ApiError` for an end that is an error."""
    while not answer.finished:
        for _, frame in await answer.take():
            made = grpc_convert.chunk(ident, frame)
            if made is not None:
                await context.write(made)
            if frame.end is None:
                continue
            error = failure(frame.end, answer.generations[0]) if frame.end.reason == "error" else None
            if error is not None:
                raise error
            await context.write(grpc_convert.complete(ident, frame.child, frame.end, answer.lives[0]))
