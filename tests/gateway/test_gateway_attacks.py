"""Requests at the edge of what is allowed: costly to read, or with very large answers."""

from __future__ import annotations

import time

import pytest

from phloem_gateway.core import Core
from phloem_gateway.decode import check_depth, decode
from phloem_gateway.errors import ApiError
from phloem_proto.messages import Text, TextFrame, TokenLogprob, TopLogprob
from tests.gateway.test_gateway_core import RID, live, opened

HALF_A_MEBIBYTE = 256 * 1024
"""Pairs of two bytes."""


@pytest.mark.parametrize("tail", [b'\\"', b"\\\n", b'"\\\n'])
def test_a_string_that_never_ends_costs_no_more_than_its_length(tail: bytes) -> None:
    body = b'{"x": [' + b"[]," * 65 + b'"' + tail * HALF_A_MEBIBYTE
    begun = time.process_time()
    with pytest.raises(ApiError) as refused:
        decode(body, dict)
    assert refused.value.code == "invalid_json"
    # Quadratic work on this body takes hours; linear work a few hundredths of a second.
    assert time.process_time() - begun < 5.0


def test_brackets_inside_strings_do_not_nest() -> None:
    check_depth(b'["' + b'[\\"{' * 1000 + b'"]')
    with pytest.raises(ApiError):
        check_depth(b'["\\\\",' + b"[" * 64 + b"]" * 64 + b"]")


def test_logprobs_of_a_long_prompt_cut_no_client() -> None:
    core, one = Core(1024 * 1024), live()
    opened(core, one)
    entry = TokenLogprob(1, -1.0, tuple(TopLogprob(i, -1.0, b"a") for i in range(20)), b"a")
    core.text("tok", Text((TextFrame(RID, 1, 0, 0, b"", "", None, (), (entry,) * 2000),)), 1.0)
    assert not core.over_budget(one)
    core.text("tok", Text((TextFrame(RID, 1, 0, 0, b"", "", None, (entry,) * 2000),)), 1.0)
    assert core.over_budget(one)
