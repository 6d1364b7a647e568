"""Cut the schemas that our replies must fit out of OpenAI's API description: ``make_openai_excerpt.py openapi.json excerpt.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOTS = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "ListModelsResponse",
    "Model",
    "ErrorResponse",
)
NOISE = ("description", "x-oaiMeta", "x-stainless-const", "example", "examples", "title", "deprecated")


def strip(node: Any) -> Any:
    """The schema without its prose."""
    if isinstance(node, dict):
        return {key: strip(value) for key, value in node.items() if key not in NOISE or isinstance(value, dict)}
    return [strip(item) for item in node] if isinstance(node, list) else node


def references(node: Any) -> list[str]:
    """Names of the components that ``node`` refers to."""
    if isinstance(node, dict):
        own = [node["$ref"].rpartition("/")[2]] if isinstance(node.get("$ref"), str) else []
        return own + [name for value in node.values() for name in references(value)]
    return [name for item in node for name in references(item)] if isinstance(node, list) else []


def excerpt(schemas: dict[str, Any]) -> dict[str, Any]:
    """`ROOTS` and everything they need."""
    kept: dict[str, Any] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = strip(schemas[name])
            waiting += references(kept[name])
    return {"components": {"schemas": {name: kept[name] for name in sorted(kept)}}}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    made = excerpt(json.loads(source.read_text(encoding="utf-8"))["components"]["schemas"])
    target.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
