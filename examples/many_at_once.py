"""Sixteen chats at once, with the official asynchronous `openai` client; they are computed in one batch.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import asyncio
import os
import time

from openai import AsyncOpenAI

COUNT = 16


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


async def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    async with AsyncOpenAI(base_url=f"{base}/v1", api_key=os.environ.get("PHLOEM_API_KEY", "none")) as client:
        model = (await client.models.list()).data[0].id
        start = time.perf_counter()
        answers = await asyncio.gather(*(ask(client, model, number) for number in range(COUNT)))
        seconds = time.perf_counter() - start
    for number, (text, _) in enumerate(answers):
        print(f"{number + 1:2}: {text[:90]!r}")
    tokens = sum(count for _, count in answers)
    print(f"{COUNT} answers, {tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    asyncio.run(main())
