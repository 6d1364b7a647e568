"""`$VAR` and `${VAR...}` in a compose file, as `docker compose` reads them, and the `.env` file beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import ComposeError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Longest first: ":-" must not be read as ":" followed by "-".
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace every variable in ``text``. ``$$`` is a dollar sign; an unset variable without a default is empty.

    Understood: ``$V``, ``${V}``, ``${V:-default}``, ``${V-default}``, ``${V:?message}``, ``${V?message}``, ``${V:+instead}``,
    ``${V+instead}``; the word after the operator may hold variables itself.

    Raises:
        ComposeError: malformed, or a required variable is missing.
    """
    result, position = _expand(text, 0, variables, nested=False)
    assert position == len(text)
    return result


def interpolate_tree(node: Any, variables: Mapping[str, str]) -> Any:
    """`interpolate` for every string value (not the keys) of a parsed YAML document. Raises ComposeError."""
    if isinstance(node, str):
        return interpolate(node, variables)
    if isinstance(node, list):
        return [interpolate_tree(item, variables) for item in node]
    if isinstance(node, dict):
        return {key: interpolate_tree(value, variables) for key, value in node.items()}
    return node


def read_env_file(text: str) -> dict[str, str]:
    """The variables of a `.env` file: ``NAME=value`` lines, ``#`` comments, optional quotes and ``export``.

    Raises:
        ComposeError: a line that is none of these.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise ComposeError(f".env line {number}: expected NAME=value")
        variables[name] = _unquote(value.strip())
    return variables


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return re.split(r"\s+#", value, maxsplit=1)[0]


def _expand(text: str, position: int, variables: Mapping[str, str], *, nested: bool) -> tuple[str, int]:
    """Expand from ``position`` to the end, or to the closing brace if ``nested``. Returns what it became, and where it stopped."""
    parts: list[str] = []
    while position < len(text):
        character = text[position]
        if nested and character == "}":
            return "".join(parts), position
        if character != "$":
            parts.append(character)
            position += 1
            continue
        value, position = _dollar(text, position + 1, variables)
        parts.append(value)
    if nested:
        raise ComposeError(f"a variable's brace is not closed: {text!r}")
    return "".join(parts), position


def _dollar(text: str, position: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """What stands after a dollar sign at ``position``."""
    if text.startswith("$", position):
        return "$", position + 1
    braced = text.startswith("{", position)
    name = _NAME.match(text, position + braced)
    if name is None:
        raise ComposeError(f"no variable name after $ (write $$ for a dollar sign): {text!r}")
    if not braced:
        return variables.get(name[0], ""), name.end()
    operator = next((candidate for candidate in _OPERATORS if text.startswith(candidate, name.end())), "")
    word, end = _expand(text, name.end() + len(operator), variables, nested=True)
    if not operator and word:
        raise ComposeError(f"malformed variable {text[position - 1 : end + 1]!r}")
    return _choose(name[0], operator, word, variables), end + 1


def _choose(name: str, operator: str, word: str, variables: Mapping[str, str]) -> str:
    value = variables.get(name)
    # With a colon an empty variable counts as unset.
    present = bool(value) if operator.startswith(":") else value is not None
    match operator[-1:]:
        case "-":
            return value or "" if present else word
        case "+":
            return word if present else ""
        case "?" if not present:
            raise ComposeError(f"variable {name} is required: {word or 'it is not set'}")
        case _:
            return value or ""
