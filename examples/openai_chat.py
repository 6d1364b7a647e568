"""A streamed chat with the official `openai` client.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import os
import sys

from openai import OpenAI


def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    question = " ".join(sys.argv[1:]) or "What does phloem do in a tree? Answer in one sentence."
    with OpenAI(base_url=f"{base}/v1", api_key=os.environ.get("PHLOEM_API_KEY", "none")) as client:
        model = client.models.list().data[0].id
        print(f"{model}: ", end="", flush=True)
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=60,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = None
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            usage = chunk.usage or usage
    print()
    if usage is None:
        sys.exit("the stream ended without its usage")
    print(f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out")


if __name__ == "__main__":
    main()
