"""The same long prompt twice: the second time its prefix is found in the radix tree and not computed again.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import os
import secrets
import sys
import time

from openai import OpenAI


def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    # A number nobody has sent before in front, so that the first request finds nothing even if this is run again.
    rules = f"Handbook {secrets.token_hex(8)}. " + " ".join(
        f"Rule {number}: be kind to tree {number}." for number in range(30)
    )
    with OpenAI(base_url=f"{base}/v1", api_key=os.environ.get("PHLOEM_API_KEY", "none")) as client:
        model = client.models.list().data[0].id
        cached = []
        for turn in ("first", "second"):
            start = time.perf_counter()
            reply = client.completions.create(model=model, prompt=rules, max_tokens=8, temperature=0)
            seconds = time.perf_counter() - start
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            cached.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
            print(f"{turn}: {reply.usage.prompt_tokens} prompt tokens, {cached[-1]} of them cached, {seconds:.3f} s")
    if not cached[1] > cached[0]:
        sys.exit("the second request found no more in the cache than the first")


if __name__ == "__main__":
    main()
