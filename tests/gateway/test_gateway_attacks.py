"""Bodies made to cost the gateway's event loop far more than they cost their sender."""

from __future__ import annotations

import time

import pytest

from phloem_gateway.decode import check_depth, decode
from phloem_gateway.errors import ApiError

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
