"""Variables of compose files and `.env` files, as `docker compose` reads them."""

from __future__ import annotations

import pytest

from phloem.up.errors import ComposeError
from phloem.up.interpolate import interpolate, interpolate_tree, read_env_file

VARIABLES = {"A": "1", "EMPTY": "", "B": "two"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$A/${B}", "1/two"),
        ("${MISSING}", ""),
        ("$$A", "$A"),
        ("${A:-x}${EMPTY:-x}${MISSING:-x}", "1xx"),
        ("${A-x}${EMPTY-x}${MISSING-x}", "1x"),
        ("${A:+x}${EMPTY:+x}${MISSING:+x}", "x"),
        ("${A+x}${EMPTY+x}${MISSING+x}", "xx"),
        ("${MISSING:-${B}-$A}", "two-1"),
        ("${MISSING:-http://h:1/}", "http://h:1/"),
        ("${A:?must be set}", "1"),
    ],
)
def test_variables_are_replaced_as_compose_does(text: str, expected: str) -> None:
    assert interpolate(text, VARIABLES) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${MISSING:?give it}", "variable MISSING is required: give it"),
        ("${EMPTY:?give it}", "variable EMPTY is required"),
        ("${A", "not closed"),
        ("${A:-${B}", "not closed"),
        ("${}", "no variable name"),
        ("$1", "no variable name"),
        ("${A!x}", "malformed"),
    ],
)
def test_what_cannot_be_replaced_is_named(text: str, says: str) -> None:
    with pytest.raises(ComposeError, match=says):
        interpolate(text, VARIABLES)


def test_only_values_of_a_document_are_replaced() -> None:
    document = {"$A": ["$A", 2, {"k": "${B}"}], "n": None}
    assert interpolate_tree(document, VARIABLES) == {"$A": ["1", 2, {"k": "two"}], "n": None}


def test_an_env_file_is_read_line_by_line() -> None:
    text = "# comment\n\nA=1\nexport B = 'two words' \nC=\"x\"\nD=plain # remark\nE=a=b\n"
    assert read_env_file(text) == {"A": "1", "B": "two words", "C": "x", "D": "plain", "E": "a=b"}


def test_an_env_file_with_a_stray_line_is_refused_with_its_number() -> None:
    with pytest.raises(ComposeError, match="line 2"):
        read_env_file("A=1\nwhat is this\n")
