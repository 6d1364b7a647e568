"""An answer that must match a regular expression, which is a Phloem extension of the OpenAI API.

Run `phloem serve` first. PHLOEM_URL says where it is (default http://127.0.0.1:8000), PHLOEM_API_KEY its key if it has one.
"""

import os
import re
import sys

from openai import OpenAI

DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


def main() -> None:
    base = os.environ.get("PHLOEM_URL", "http://127.0.0.1:8000")
    with OpenAI(base_url=f"{base}/v1", api_key=os.environ.get("PHLOEM_API_KEY", "none")) as client:
        model = client.models.list().data[0].id
        reply = client.chat.completions.create(
            model=model,
            messages=[
                {"role": "user", "content": "On which day did people first walk on the Moon? Answer with an ISO date."}
            ],
            max_completion_tokens=30,
            temperature=0,
            extra_body={"regex": DATE},
        )
    text = reply.choices[0].message.content or ""
    print(text)
    if not re.fullmatch(DATE, text):
        sys.exit(f"{text!r} does not match {DATE}")
    print(f"matches {DATE}")


if __name__ == "__main__":
    main()
