"""What all gRPC methods share: keys, call ids, errors as status codes, one log line per call."""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, NoReturn

import anyio
import grpc
import grpc.aio

from phloem_proto.v1 import phloem_pb2_grpc

from . import checks
from .auth import Keys
from .errors import ApiError, internal
from .gateway import Gateway
from .grpc_wire import readable
from .limits import MAX_REQUEST_ID_CHARS
from .serving import SlowClient

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Any, Context, "Caller"], Awaitable[Any]]

ABORT_S = 2.0
"""How long a status may wait behind what a client has not read."""
_TOO_SLOW = "The client did not read its output fast enough."
_log = logging.getLogger("phloem.gateway.grpc")


class Caller(NamedTuple):
    """Who calls (see `Keys.owner`) and the id of the call."""

    owner: str
    request_id: str


def guarded(method: Method) -> Callable[[Any, Any, Context], Awaitable[Any]]:
    """Check the key, turn errors into status codes, write the log line. ``method`` also gets the caller.

    Every reply's trailing metadata holds ``x-request-id``: the request's own ``request_id``, the caller's metadata of that name,
    or one drawn here.
    """

    @functools.wraps(method)
    async def wrapper(self: Guarded, request: Any, context: Context) -> Any:
        begun, outcome = time.perf_counter(), "OK"
        context_id = self.call_id(getattr(request, "request_id", ""), _metadata(context, "x-request-id"))
        context.set_trailing_metadata((("x-request-id", context_id),))
        try:
            owner = self.keys.owner(_metadata(context, "authorization"))
            readable(request)
            return await method(self, request, context, Caller(owner, context_id))
        except ApiError as error:
            outcome = error.grpc_status
            await _abort(context, error, context_id)
        except SlowClient:
            outcome = "RESOURCE_EXHAUSTED"
            await _abort(context, ApiError("rate_limit_exceeded", _TOO_SLOW), context_id)
        except anyio.get_cancelled_exc_class():
            outcome = "CANCELLED"
            raise
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            outcome = "INTERNAL"
            _log.exception("unexpected error", extra={"request_id": context_id})
            await _abort(context, internal(), context_id)
        finally:
            name = method.__name__
            self.gateway.metrics.responses.labels(f"grpc:{name}", outcome).inc()
            taken = 1000 * (time.perf_counter() - begun)
            _log.info("%s %s %.1f ms", name, outcome, taken, extra={"request_id": context_id})

    return wrapper


def is_own_id(text: str) -> bool:
    """Whether ``text`` can be a request's own id."""
    return 0 < len(text) <= MAX_REQUEST_ID_CHARS and text.isascii() and text.isprintable()


def _metadata(context: Context, name: str) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""


async def _abort(context: Context, error: ApiError, request_id: str) -> NoReturn:
    """End the call with ``error``'s status; code, field and retry time go into the trailing metadata."""
    trailing = [("x-request-id", request_id), ("phloem-error-code", error.code)]
    if error.param is not None:
        trailing.append(("phloem-error-param", error.param.encode("ascii", "replace").decode()))
    if error.retry_after is not None:
        trailing.append(("retry-after", str(error.retry_after)))
    with anyio.move_on_after(ABORT_S):
        await context.abort(grpc.StatusCode[error.grpc_status], error.message, tuple(trailing))
    raise grpc.aio.AbortError("the client does not read")


class Guarded(phloem_pb2_grpc.PhloemServicer):
    """Base of the servicer's parts.

    Args:
        rng: draws request ids.
    """

    def __init__(self, gateway: Gateway, keys: Keys, rng: random.Random) -> None:
        self.gateway = gateway
        self.keys = keys
        self._rng = rng

    def call_id(self, own: str, told: str) -> str:
        """The first of a request's own id and its caller's metadata that is usable, else one drawn."""
        if is_own_id(own):
            return own
        return told if checks.is_request_id(told) else f"req-{self._rng.randbytes(12).hex()}"

    def deadline(self, context: Context) -> float:
        """Clock time by which the caller wants its answer."""
        limit = self.gateway.config.request_timeout_s
        left = context.time_remaining()
        return anyio.current_time() + (limit if left is None else min(left, limit))
