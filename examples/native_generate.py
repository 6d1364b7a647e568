"""The native `/generate` form: a batch of prompts in one request, and what is known about each answer.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import os

import httpx


def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    key = os.environ.get("PHLOEM_API_KEY")
    reply = httpx.post(
        f"{base}/generate",
        json={
            "text": ["The tallest tree is", "The oldest tree is", "The widest tree is"],
            "sampling_params": {"max_new_tokens": 16, "temperature": 0.8, "sampling_seed": 7},
        },
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=60,
    )
    reply.raise_for_status()
    for answer in reply.json():
        about = answer["meta_info"]
        print(repr(answer["text"]))
        print(
            f"    {about['prompt_tokens']} tokens in ({about['cached_tokens']} cached), {about['completion_tokens']} out, "
            f"ended by {about['finish_reason']['type']}"
        )


if __name__ == "__main__":
    main()
