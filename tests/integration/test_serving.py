"""The main job, as its users do it: the default model behind the official client, in one process and over NATS."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from openai import OpenAI

from tests.integration.harness import Running, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAYS = [("serve",), ("up", "--scale", "grammar=2", "--scale", "tokenizer=2")]
PAGE = 16


@pytest.fixture(scope="module", params=WAYS, ids=["serve", "up-scaled"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with phloem(*request.param, "--model", "smollm2") as started:
        yield started


@pytest.fixture
def client(running: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def ask(client: OpenAI, text: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": text}], temperature=0, **options
    )


def test_a_streamed_chat_says_something_sensible(client: OpenAI) -> None:
    stream = ask(client, "What is the capital of France?", max_tokens=24, stream=True)
    deltas = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(deltas) > 3
    assert "Paris" in "".join(deltas)


def test_sixteen_at_once_answer_as_each_alone(client: OpenAI) -> None:
    questions = [f"Name one thing that is {colour}." for colour in ("red", "blue", "green", "yellow")] * 4
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda q: ask(client, q, max_tokens=12).choices[0].message.content, questions))
    assert len(answers) == 16
    assert all(answers)


def test_the_same_long_prompt_twice_is_cached_within_a_page(client: OpenAI) -> None:
    text = "Read this. " + " ".join(f"Line {i} says {i * 7}." for i in range(150))
    first = ask(client, text, max_tokens=2)
    second = ask(client, text, max_tokens=2)
    assert first.usage.prompt_tokens == second.usage.prompt_tokens > 500
    assert second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens <= PAGE
    assert second.choices[0].message.content == first.choices[0].message.content


def test_choices_share_one_prompt_and_a_seed_repeats_them(client: OpenAI) -> None:
    def four_words() -> list[Any]:
        messages: Any = [{"role": "user", "content": "Tell me a word."}]
        reply = client.chat.completions.create(
            model="smollm2", messages=messages, n=4, temperature=1.0, seed=5, max_tokens=8
        )
        return list(reply.choices)

    choices = four_words()
    texts = [choice.message.content for choice in choices]
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert [choice.message.content for choice in four_words()] == texts


def test_a_grpc_client_built_from_reflection_chats(running: Running) -> None:
    with grpc.insecure_channel(running.grpc) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("phloem.v1.Phloem")
        method = service.FindMethodByName("Generate")
        request_type = message_factory.GetMessageClass(method.input_type)
        reply_type = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_stream(
            f"/{service.full_name}/{method.name}",
            request_serializer=request_type.SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        request: Any = request_type(text="The capital of France is")
        request.sampling.temperature = 0
        request.sampling.max_tokens = 8
        replies = list(call(request, timeout=60))
    assert "Paris" in "".join(reply.chunk.text for reply in replies if reply.HasField("chunk"))


def test_nothing_is_held_after_all_that(running: Running) -> None:
    nothing_held(running)
