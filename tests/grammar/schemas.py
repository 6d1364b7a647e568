"""Random schemas, built so that the places where engines are known to leak meet each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ("a", "b", "ab", "c/d", "é", "x\ny")


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """A schema of bounded depth; about half of them are such that an engine takes them."""
    makers: list[Callable[[random.Random, int], Schema]] = [_string, _integer, _number, _constant]
    if depth:
        makers += [_object, _object, _object, _array, _any_of, _one_of, _all_of]
    return rng.choice(makers)(rng, depth - 1)


def _some(rng: random.Random, **options: Any) -> Schema:
    return {key: value for key, value in options.items() if rng.random() < 0.35}


def _string(rng: random.Random, _: int) -> Schema:
    low = rng.randrange(3)
    schema = {"type": "string", **_some(rng, minLength=low, maxLength=low + rng.randrange(4))}
    formats = ("date", "time", "date-time", "email", "ipv4", "uuid", "hostname", "duration", "ipv6")
    patterns = ("^[a-c]*$", "a", "^\\d+$", "^[^a]$", "x|^y", "^\\w\\s\\w$", "[\\x00-\\x7f]", "^(ab){1,2}$")
    return schema | _some(rng, format=rng.choice(formats)) | _some(rng, pattern=rng.choice(patterns))


def _integer(rng: random.Random, _: int) -> Schema:
    low = rng.randrange(-30, 30)
    chosen = _some(
        rng, minimum=low, maximum=low + rng.randrange(40), exclusiveMinimum=low - 3, exclusiveMaximum=low + 50
    )
    return {"type": "integer", **chosen, **_some(rng, multipleOf=rng.choice((2, 3, 7)))}


def _number(rng: random.Random, _: int) -> Schema:
    low = rng.choice((-2.5, -1, 0, 0.25, 3))
    return {"type": "number", **_some(rng, minimum=low, maximum=low + 1.5, exclusiveMaximum=low + 4)}


def _constant(rng: random.Random, _: int) -> Schema:
    values = ["a", 1, None, True, {"a": [1, "b"]}, [], "é\n/", 2.5]
    return {"enum": rng.sample(values, 3)} if rng.random() < 0.5 else {"const": rng.choice(values)}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randrange(4))
    schema: Schema = {"type": "object", "properties": {name: random_schema(rng, depth) for name in names}}
    schema |= _some(
        rng,
        required=rng.sample(NAMES, rng.randrange(3)),
        minProperties=rng.randrange(4),
        maxProperties=rng.randrange(1, 5),
    )
    schema |= _some(rng, patternProperties={rng.choice(("^a", "b$", "c")): random_schema(rng, depth)})
    if rng.random() < 0.7:
        schema["additionalProperties"] = rng.choice((False, False, random_schema(rng, depth)))
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(3)
    schema = {"type": "array", **_some(rng, minItems=low, maxItems=low + rng.randrange(3))}
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, depth) for _ in range(2)]
    return schema | {"items": random_schema(rng, depth)}


def _branches(rng: random.Random, depth: int) -> list[Schema]:
    return [random_schema(rng, depth) for _ in range(2)]


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": _branches(rng, depth)}


def _one_of(rng: random.Random, depth: int) -> Schema:
    return {"oneOf": _branches(rng, depth)}


def _all_of(rng: random.Random, depth: int) -> Schema:
    return {"allOf": _branches(rng, depth)}
