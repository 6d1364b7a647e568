"""OpenAI's own description of replies, and a check against it.

Relaxed, as OpenAI's own replies need it: in a stream chunk ``finish_reason`` and ``usage`` may be null (the description says
``nullable``, which JSON Schema does not know), and so may a token's logprob in an echoed prompt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema

from .make_openai_excerpt import excerpt

HERE = Path(__file__).parent


def description() -> dict[str, Any]:
    """The whole description where it is at hand, else the committed excerpt."""
    folder = Path(os.environ.get("PHLOEM_DATA", HERE.parents[1].parent / "shared" / "data"))
    whole = folder / "openai_openapi.json"
    if whole.exists():
        return excerpt(json.loads(whole.read_text(encoding="utf-8"))["components"]["schemas"])
    loaded: dict[str, Any] = json.loads((HERE / "data" / "openai_excerpt.json").read_text(encoding="utf-8"))
    return loaded


def relax(node: Any) -> Any:
    """``nullable: true`` in JSON Schema's own words."""
    if isinstance(node, list):
        return [relax(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: relax(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") is True else made


def relaxed() -> dict[str, Any]:
    made: dict[str, Any] = relax(description())
    stream = made["components"]["schemas"]["CreateChatCompletionStreamResponse"]["properties"]
    stream["usage"] = {"anyOf": [stream["usage"], {"type": "null"}]}
    completion = made["components"]["schemas"]["CreateCompletionResponse"]["properties"]
    choice = completion["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}  # in chunks
    completion["usage"] = {"anyOf": [completion["usage"], {"type": "null"}]}
    logprobs = choice["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):
        logprobs[name]["items"] = {"anyOf": [logprobs[name]["items"], {"type": "null"}]}
    return made


def check(schemas: dict[str, Any], name: str, reply: Any) -> None:
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **schemas}).validate(reply)
