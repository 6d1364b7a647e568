"""Sixteen chats at once, with the official asynchronous `openai` client; they are computed in one batch, so steps are far fewer than tokens.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import asyncio
import os
import time

import httpx
from openai import AsyncOpenAI

COUNT = 16
BASE = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("PHLOEM_API_KEY", "none")


def counter(name: str) -> float:
    """A counter of the scheduler's, as the metrics tell it."""
    page = httpx.get(f"{BASE}/metrics", headers={"authorization": f"Bearer {KEY}"}).raise_for_status().text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"phloem_scheduler_{name}"))


async def ask(client: AsyncOpenAI, model: str, number: int) -> tuple[str, int]:
    """One question; its answer and number of tokens."""
    reply = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Name {number + 1} thing(s) that grow on trees."}],
        max_completion_tokens=24,
        temperature=0,
    )
    assert reply.usage is not None
    return reply.choices[0].message.content or "", reply.usage.completion_tokens


async def ask_all() -> list[tuple[str, int]]:
    async with AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY) as client:
        model = (await client.models.list()).data[0].id
        return await asyncio.gather(*(ask(client, model, number) for number in range(COUNT)))


def main() -> None:
    tokens_before, steps_before = counter("output_tokens_total"), counter("steps_total")
    start = time.perf_counter()
    answers = asyncio.run(ask_all())
    seconds = time.perf_counter() - start
    for number, (text, _) in enumerate(answers):
        print(f"{number + 1:2}: {text[:90]!r}")
    tokens = sum(count for _, count in answers)
    while counter("output_tokens_total") < tokens_before + tokens:  # the scheduler tells it a few times a second
        time.sleep(0.1)
    steps = counter("steps_total") - steps_before
    print(f"{COUNT} answers, {tokens} tokens in {seconds:.2f} s and {steps:.0f} steps: {tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
