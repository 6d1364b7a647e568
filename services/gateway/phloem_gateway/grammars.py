"""Grammar wishes of all edges to one `GrammarSpec`. Whether a grammar is any good is for the grammar service to say."""

from __future__ import annotations

import msgspec

from phloem_proto.messages import GrammarSpec

from .bodies import ResponseFormat
from .checks import invalid, unicode_text, unsupported
from .decode import check_depth
from .errors import ApiError


def from_openai(format: ResponseFormat | None, regex: str | None) -> tuple[GrammarSpec | None, str]:
    """The spec and the client's name of the field it came from.

    Raises:
        ApiError: an unknown kind, a missing schema, or more than one constraint.
    """
    spec = None if format is None else _from_format(format)
    if regex:
        if spec is not None:
            raise ApiError("invalid_request", "Give at most one of 'response_format' and 'regex'.", param="regex")
        return GrammarSpec("regex", unicode_text("regex", regex)), "regex"
    return spec, "response_format"


def _from_format(format: ResponseFormat) -> GrammarSpec | None:
    match format.type:
        case "text":
            return None
        case "json_object":
            return GrammarSpec("json_object", "")
        case "json_schema":
            wanted = format.json_schema
            where = "response_format.json_schema"
            if wanted is None or bytes(wanted.schema) in (b"", b"null"):
                where = where if wanted is None else f"{where}.schema"
                raise ApiError("missing_required_parameter", f"Missing required parameter: '{where}'.", param=where)
            return json_schema(f"{where}.schema", bytes(wanted.schema), strict=wanted.strict is not False)
        case "structural_tag":
            raise unsupported("response_format.type", "'structural_tag' is not supported")
        case other:
            raise invalid("response_format.type", "one of 'text', 'json_object', 'json_schema'", other)


def json_schema(param: str, source: bytes, *, strict: bool = True) -> GrammarSpec:
    """A schema given as JSON text: an object or a boolean.

    Raises:
        ApiError: it is no JSON, neither object nor boolean, or nested too deeply.
    """
    check_depth(source)
    try:
        schema = msgspec.json.decode(source)
        text = source.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid(param, "a JSON schema") from None
    if not isinstance(schema, dict | bool):
        raise ApiError(
            "invalid_type", f"Invalid type for '{param}': expected a JSON schema (an object or a boolean).", param=param
        )
    return GrammarSpec("json_schema", text, strict)


def one_of(
    json_schema_text: str | None, regex: str | None, json_object: bool, names: dict[str, str]
) -> tuple[GrammarSpec | None, str]:
    """The native edges' form: at most one of the three; an empty string means unset.

    Args:
        names: the client's words for ``json_schema`` and ``regex``.
    """
    given = [
        key
        for key, value in (("json_schema", json_schema_text), ("regex", regex), ("json_object", json_object))
        if value
    ]
    if len(given) > 1:
        listed = " and ".join(f"'{names.get(key, key)}'" for key in given)
        raise ApiError(
            "invalid_request", f"Give at most one grammar, not {listed}.", param=names.get(given[1], given[1])
        )
    if json_schema_text:
        name = names.get("json_schema", "json_schema")
        return json_schema(name, unicode_text(name, json_schema_text).encode()), name
    if regex:
        name = names.get("regex", "regex")
        return GrammarSpec("regex", unicode_text(name, regex)), name
    return (GrammarSpec("json_object", ""), "json_object") if json_object else (None, "")
