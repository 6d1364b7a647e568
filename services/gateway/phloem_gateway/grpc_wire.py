"""Bytes that are no message: a proper refusal instead of gRPC's own UNKNOWN, which names exceptions and logs a stack for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from .errors import ApiError


class Malformed:
    """Stands for a request that can't be read."""


MALFORMED = Malformed()


def readable(request: Any) -> None:
    """Raise `ApiError` for a request that could not be read."""
    if isinstance(request, Malformed):
        raise ApiError("invalid_request", "The request is not a valid message of this method.")


class LenientReader(aio.ServerInterceptor):  # type: ignore[type-arg] # no subscript at run time
    """Lets handlers of ``service`` see unreadable requests as `MALFORMED`."""

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(self._prefix):
            return handler
        read, write = _lenient(handler.request_deserializer), handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(handler.unary_stream, read, write)
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, read, write)


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def deserialize(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return MALFORMED

    return deserialize
