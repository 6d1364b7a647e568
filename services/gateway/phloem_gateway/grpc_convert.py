"""gRPC requests to `Generation`s and frames to gRPC messages. The same checks as over HTTP, in the proto's field names."""

from __future__ import annotations

import msgspec

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import ChatMessage, End, GrammarSpec, TextFrame, TokenLogprob
from phloem_proto.v1 import phloem_pb2 as pb

from . import bodies, chats, checks, grammars
from .checks import ModelFacts, Wishes
from .errors import ApiError
from .limits import MAX_TOP_LOGPROBS
from .live import Live
from .parse_openai import known_model
from .request import Generation

_FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_PLAIN = ("max_tokens", "top_k", "min_tokens", "ignore_eos", "seed", "n", "skip_special_tokens")


def generation(request: pb.GenerateRequest, facts: ModelFacts, *, max_choices: int) -> Generation:
    """Check a request. Raises `ApiError`."""
    known_model(request.model if request.HasField("model") else None, facts)
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise ApiError("missing_required_parameter", "Give one of 'text', 'chat' and 'token_ids'.", param="prompt")
    ids = checks.prompt_ids("token_ids.ids", list(request.token_ids.ids), facts) if kind == "token_ids" else None
    grammar, grammar_name = _grammar(request)
    name = {"text": "text", "chat": "chat.messages", "token_ids": "token_ids.ids"}[kind]
    wishes = _wishes(request.sampling)
    return Generation(
        sampling=checks.sampling(wishes, facts, max_choices=max_choices, least_tokens=0),
        text=checks.prompt_text("text", request.text) if kind == "text" else None,
        messages=chat(request.chat) if kind == "chat" else (),
        ids=ids,
        template_kwargs=template_kwargs(request.chat) if kind == "chat" else "",
        grammar=grammar,
        logprobs=_logprobs(request, "logprobs"),
        prompt_logprobs=_logprobs(request, "prompt_logprobs"),
        logprob_start=checks.whole("logprob_start", _given(request, "logprob_start"), 0, 2**31 - 1, 0),
        salt=checks.salt("cache_salt", request.cache_salt),
        extra=checks.salt("extra_key", request.extra_key),
        priority=checks.priority("priority", request.priority),
        params={
            "ids": name,
            "texts": name,
            "messages": name,
            "grammar": grammar_name,
            "max_tokens": "sampling.max_tokens",
        },
    )


def _given(message: pb.GenerateRequest, name: str) -> int | None:
    value: int = getattr(message, name)
    return value if message.HasField(name) else None


def _logprobs(request: pb.GenerateRequest, name: str) -> int:
    return checks.whole(name, _given(request, name), 0, MAX_TOP_LOGPROBS, -1)


def _wishes(sampling: pb.SamplingParams) -> Wishes:
    wishes = Wishes(
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        logit_bias={key: _decimal(value) for key, value in sorted(sampling.logit_bias.items())},
        include_stop=sampling.include_stop_str_in_output,
    )
    for name in (*_FLOATS, *_PLAIN):
        if sampling.HasField(name):
            value = getattr(sampling, name)
            setattr(wishes, name, _decimal(value) if name in _FLOATS else value)
    fields = (*_FLOATS, *_PLAIN, "stop", "stop_token_ids", "logit_bias")
    wishes.names = {name: f"sampling.{name}" for name in fields}
    return wishes


def _decimal(value: float) -> float:
    """The shortest decimal a float32 stands for, so that 0.7 is the 0.7 of a JSON request."""
    return float(f"{value:.7g}")


def chat(given: pb.Chat) -> tuple[ChatMessage, ...]:
    """A chat's messages, checked. Raises `ApiError`."""
    messages = [bodies.Message(m.role, m.content, m.name or None) for m in given.messages]
    try:
        return chats.flatten(messages)
    except ApiError as error:
        error.param = f"chat.{error.param}"
        raise


def template_kwargs(given: pb.Chat) -> str:
    """``template_kwargs_json``, if it is a JSON object. Raises `ApiError`."""
    if not given.template_kwargs_json:
        return ""
    try:
        value = msgspec.json.decode(given.template_kwargs_json)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise checks.invalid("chat.template_kwargs_json", "a JSON object")
    return given.template_kwargs_json


def _grammar(request: pb.GenerateRequest) -> tuple[GrammarSpec | None, str]:
    match request.WhichOneof("grammar"):
        case "regex":
            return grammars.one_of(None, request.regex, False, {})
        case "json_schema":
            return grammars.one_of(request.json_schema, None, False, {})
        case "json_object":
            return grammars.one_of(None, None, request.json_object, {})
        case _:
            return None, ""


def chunk(ident: str, frame: TextFrame) -> pb.GenerateResponse | None:
    """A frame's output; None if it has none."""
    if not (frame.ids or frame.text or frame.prompt_logprobs):
        return None
    made = pb.Chunk(
        text=frame.text,
        token_ids=unpack_ids(frame.ids),
        logprobs=[_logprob(entry) for entry in frame.logprobs],
        prompt_logprobs=[_logprob(entry) for entry in frame.prompt_logprobs],
    )
    return pb.GenerateResponse(request_id=ident, index=frame.child, chunk=made)


def _logprob(entry: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        id=entry.id,
        logprob=entry.logprob,
        piece=entry.piece,
        alternatives=[pb.Alternative(id=top.id, logprob=top.logprob, piece=top.piece) for top in entry.top],
    )


def complete(ident: str, child: int, end: End, live: Live) -> pb.GenerateResponse:
    """The last message of a choice."""
    usage = pb.Usage(
        prompt_tokens=live.prompt_tokens,
        completion_tokens=len(live.children[child].ids),
        cached_tokens=max(live.cached_tokens, 0),
    )
    made = pb.Complete(finish_reason=end.reason, usage=usage, message=end.message)
    if isinstance(end.matched, int):
        made.token_id = end.matched
    elif isinstance(end.matched, str):
        made.stop = end.matched
    return pb.GenerateResponse(request_id=ident, index=child, complete=made)
