"""An answer that must follow a JSON schema, checked with a validator of its own.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import json
import os

import jsonschema_rs
from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "height_m": {"type": "integer", "minimum": 1, "maximum": 120},
        "evergreen": {"type": "boolean"},
        "continent": {"enum": ["Africa", "America", "Asia", "Australia", "Europe"]},
    },
    "required": ["name", "height_m", "evergreen", "continent"],
    "additionalProperties": False,
}


def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    with OpenAI(base_url=f"{base}/v1", api_key=os.environ.get("PHLOEM_API_KEY", "none")) as client:
        model = client.models.list().data[0].id
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Describe one kind of tree as JSON."}],
            max_completion_tokens=250,
            temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "tree", "schema": SCHEMA, "strict": True}},
        )
    text = reply.choices[0].message.content or ""
    tree = json.loads(text)
    jsonschema_rs.validate(SCHEMA, tree)
    print(json.dumps(tree, indent=2, ensure_ascii=False))
    print(f"follows the schema; ended by {reply.choices[0].finish_reason}")


if __name__ == "__main__":
    main()
