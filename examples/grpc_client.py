"""A gRPC client without generated code: it asks the server for its own description and builds the messages from that.

Run `phloem serve` first. PHLOEM_GRPC says where it is (default 127.0.0.1:50051), PHLOEM_API_KEY its key if it has one.
"""

import os
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def main() -> None:
    key = os.environ.get("PHLOEM_API_KEY")
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    with grpc.insecure_channel(os.environ.get("PHLOEM_GRPC", "127.0.0.1:50051")) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        service = DescriptorPool(database).FindServiceByName("phloem.v1.Phloem")
        print("the server offers", ", ".join(method.name for method in service.methods))

        method = service.methods_by_name["Generate"]
        request_class = GetMessageClass(method.input_type)
        generate = channel.unary_stream(
            f"/{service.full_name}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        request = request_class(text="Once upon a time", sampling={"max_tokens": 24, "temperature": 0.0})
        complete = None
        for response in generate(request, timeout=60, metadata=metadata):
            if response.HasField("chunk"):
                print(response.chunk.text, end="", flush=True)
            else:
                complete = response.complete
    print()
    if complete is None:
        sys.exit("the stream ended without its end")
    usage = complete.usage
    print(f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out, ended by {complete.finish_reason}")


if __name__ == "__main__":
    main()
