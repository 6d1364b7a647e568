"""A gRPC client built from reflection only: it knows no generated code."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

SERVICE = "phloem.v1.Phloem"


class Client:
    """Calls ``phloem.v1.Phloem`` at ``port``. Use `connect`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._pool = descriptor_pool.DescriptorPool()
        self.services: list[str] = []

    @classmethod
    async def connect(cls, port: int, **options: Any) -> Client:
        client = cls(grpc.aio.insecure_channel(f"127.0.0.1:{port}", **options))
        await client._reflect()
        return client

    async def _reflect(self) -> None:
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        replies = [reply async for reply in stub.ServerReflectionInfo(iter(asked))]
        self.services = [service.name for service in replies[0].list_services_response.service]
        for data in replies[1].file_descriptor_response.file_descriptor_proto:
            self._pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))

    def message(self, name: str, **fields: Any) -> Any:
        """A message of the reflected schema."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"phloem.v1.{name}"))(**fields)

    def method(self, name: str) -> Any:
        """A callable for a method."""
        method = self._pool.FindServiceByName(SERVICE).methods_by_name[name]
        reply = message_factory.GetMessageClass(method.output_type)
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return kind(
            f"/{SERVICE}/{name}",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=reply.FromString,
        )

    async def generate(self, request: Any, **options: Any) -> list[Any]:
        """All responses of a Generate call."""
        return [response async for response in self.method("Generate")(request, **options)]

    async def close(self) -> None:
        await self.channel.close(None)


def trailing(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """A failed call's trailing metadata."""
    pairs: Any = error.trailing_metadata() or ()
    return {str(key): value for key, value in pairs}
