"""Encode and Detokenize as plain calls: what goes in, what comes out, what is refused by which name."""

import json
from datetime import datetime

import pytest

from phloem_model import ModelFiles
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import ChatMessage, Detokenize, Encode
from phloem_tokenizer.core import TokenizerCore
from phloem_tokenizer.encoder import Encoder

NOW = datetime(2026, 1, 1)


def ids(core: TokenizerCore, request: Encode) -> list[list[int]]:
    reply = core.encode(request, NOW)
    assert reply.error is None
    return [unpack_ids(packed).tolist() for packed in reply.ids]


def error(core: TokenizerCore, request: Encode) -> tuple[str, str, str]:
    reply = core.encode(request, NOW)
    assert reply.error is not None
    assert reply.ids == ()
    return reply.error.code, reply.error.param, reply.error.message


def test_texts_are_encoded_in_order(tiny_core: TokenizerCore) -> None:
    assert ids(tiny_core, Encode(("ab", "", "é"))) == [[97, 98], [], [0xC3, 0xA9]]


def test_a_chat_goes_through_the_template(tiny_core: TokenizerCore) -> None:
    expected = [257, *b"user\nhi", 258, *b"\n", 257, *b"assistant\n"]
    assert ids(tiny_core, Encode(messages=(ChatMessage("user", "hi"),))) == [expected]


def test_exactly_one_of_texts_and_messages(tiny_core: TokenizerCore) -> None:
    assert error(tiny_core, Encode())[:2] == ("invalid_request", "messages")
    assert error(tiny_core, Encode(("a",), (ChatMessage("user", "x"),)))[:2] == ("invalid_request", "messages")


def test_a_prompt_that_is_too_long_is_told_both_numbers(tiny_core: TokenizerCore) -> None:
    assert ids(tiny_core, Encode(("abc",), max_tokens=3)) == [[97, 98, 99]]
    code, param, message = error(tiny_core, Encode(("a", "abcd"), max_tokens=3))
    assert (code, param) == ("prompt_too_long", "texts")
    assert "4 tokens" in message
    assert "3" in message
    assert error(tiny_core, Encode(messages=(ChatMessage("user", "hi"),), max_tokens=3))[:2] == (
        "prompt_too_long",
        "messages",
    )


def test_a_call_whose_time_is_up_is_not_begun(tiny_core: TokenizerCore) -> None:
    reply = tiny_core.encode(Encode(("a",)), NOW, give_up=lambda: True)
    assert reply.error is not None
    assert reply.error.code == "deadline"


def test_a_second_bos_is_never_added(tmp_path_factory: pytest.TempPathFactory, tiny: ModelFiles) -> None:
    """A tokenizer that adds BOS, fed with a text that brings one (a rendered template, say)."""
    content = json.loads(tiny.tokenizer_json.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}},
    }
    path = tmp_path_factory.mktemp("bos") / "tokenizer.json"
    path.write_text(json.dumps(content))
    encoder = Encoder(path, 256)
    assert encoder.encode(["a", "<|endoftext|>a", ""], add_special_tokens=True) == [[256, 97], [256, 97], [256]]
    assert encoder.encode(["a", "<|endoftext|>a"], add_special_tokens=False) == [[97], [256, 97]]


def test_truncation_and_padding_in_the_file_are_not_used(
    tmp_path_factory: pytest.TempPathFactory, tiny: ModelFiles
) -> None:
    content = json.loads(tiny.tokenizer_json.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path = tmp_path_factory.mktemp("cut") / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert Encoder(path, None).encode(["abcd"], add_special_tokens=True) == [[97, 98, 99, 100]]


def test_detokenize(tiny_core: TokenizerCore) -> None:
    rows = (pack_ids([97, 258, 0xC3, 0xA9]), pack_ids([0xC3]), b"")
    reply = tiny_core.detokenize(Detokenize(rows, pieces=True))
    assert reply.texts == ("aé", "\ufffd", "")
    assert reply.pieces == ((b"a", b"<|im_end|>", b"\xc3", b"\xa9"), (b"\xc3",), ())
    assert tiny_core.detokenize(Detokenize(rows[:1], skip_special_tokens=False)).texts == ("a<|im_end|>é",)


@pytest.mark.parametrize("packed", [pack_ids([97, 260]), pack_ids([2**32 - 1]), b"123"])
def test_ids_that_are_none_are_refused(tiny_core: TokenizerCore, packed: bytes) -> None:
    reply = tiny_core.detokenize(Detokenize((packed,)))
    assert reply.error is not None
    assert (reply.error.code, reply.error.param) == ("invalid_request", "ids")


@pytest.mark.integration
def test_the_real_model_round_trips(smollm2: ModelFiles) -> None:
    core = TokenizerCore(smollm2, "smollm2")
    text = "In 2024, naïve 🙂 code:\n\tx = 10**3  # done\n"
    (row,) = ids(core, Encode((text,)))
    assert core.detokenize(Detokenize((pack_ids(row),))).texts == (text,)
    assert (core.profile.context_length, core.profile.vocab_size) == (8192, 49152)
