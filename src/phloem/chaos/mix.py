"""A mix of everything that clients do, drawn one visit at a time. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from .requests import Request, is_list_of_words, word_list

SYSTEMS = 12
"""Long beginnings that prompts share."""
SYSTEM_WORDS = 160
TAILS = 64
"""Ends of prompts, few enough that a tokenizer's memory of words knows all of them soon: to the tiny model's, a prompt is one word."""
SALTS = ("", "", "blue", "green")
SCHEMAS = 24
"""Different grammars that come back again and again."""
MOST_ITEMS = 12
TOKENS = (4, 96)
LEASE_S = (1, 8)
AT_ONCE_S = 0.02
MOST_READ = 24
FILLER_PROMPTS, FILLER_REPEATS = 32, 5
"""Prompts of one call, and how often each says its 17 bytes."""
WORDS = ("stone", "river", "garden", "seven", "quickly", "under", "lamp", "and", "winter", "a", "bread", "north")

BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/generate", {"text": "Hello", "sampling_params": {"temperature": -1}}),
    ("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": "many"}}),
    ("/generate", {"sampling_params": {}}),
    ("/generate", {"text": "Hello", "sampling_params": {"json_schema": '{"type": "nothing"}'}}),
    ("/generate", {"text": "Hello", "sampling_params": {"regex": "(["}}),
    ("/generate", {"text": "x" * 20_000}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "n": 0}),
    ("/v1/completions", {"prompt": "Hello", "logit_bias": {"no": 1}}),
    ("/pins", {"text": "Hello", "ttl_s": 0}),
)
"""Each is wrong in its own way."""


class Leave(Enum):
    """When a client gives up."""

    NEVER = auto()
    AT_ONCE = auto()
    """Before, while or just after it is heard."""
    AMID = auto()
    """Once it has read some tokens."""
    ABORT = auto()
    """It says so, over gRPC."""


@dataclass(frozen=True, slots=True)
class Generate:
    """``/generate``, read to its end or not."""

    kind: str
    request: Request
    leave: Leave = Leave.NEVER
    leave_at: float = 0.0
    """Seconds (AT_ONCE) or tokens (AMID) after which it leaves."""


@dataclass(frozen=True, slots=True)
class Page:
    """Any other call: what it may be answered, and whether the answer is one."""

    kind: str
    method: str
    path: str
    body: bytes = b""
    expected: tuple[int, ...] = (200,)
    is_right: Callable[[bytes], bool] = lambda reply: True


@dataclass(frozen=True, slots=True)
class Abort:
    """A long generation over gRPC, ended by its client's word after some chunks."""

    kind: str
    text: str
    tokens: int
    seed: int
    chunks: int


Visit = Generate | Page | Abort


class Mix:
    """Draws visits; the same seed draws the same ones.

    Args:
        model: the served model's name.
    """

    def __init__(self, seed: int, model: str) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._systems = [self._words(SYSTEM_WORDS) for _ in range(SYSTEMS)]
        self._tails = [self._words(self._rng.randrange(2, 30)) for _ in range(TAILS)]
        self._count = 0
        self._kinds: tuple[tuple[Callable[[], Visit], int], ...] = (
            (self._free, 30), (self._constrained, 14), (self._chat, 12), (self._leaving, 14), (self._aborted, 4), (self._bad, 8),
            (self._pin, 3), (self._tokenized, 4), (self._looked_at, 5),
        )  # fmt: skip

    def visit(self) -> Visit:
        """The next one."""
        self._count += 1
        (draw,) = self._rng.choices([draw for draw, _ in self._kinds], [weight for _, weight in self._kinds])
        return draw()

    def filler(self) -> Page:
        """Many short prompts that share nothing with any other: they fill caches, with more and smaller parts than visits do."""
        texts = [f"{self._rng.getrandbits(64):016x} " * FILLER_REPEATS for _ in range(FILLER_PROMPTS)]
        body = {"text": texts, "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}}
        return Page("fill", "POST", "/generate", _encoded(body))

    def _free(self) -> Generate:
        streamed = self._rng.random() < 0.6
        return Generate("free", self._request(self._prompted(self._sampling()), streamed))

    def _constrained(self) -> Generate:
        index = self._rng.randrange(SCHEMAS)
        items = 1 + index % MOST_ITEMS
        schema = word_list(items) | {"description": f"List {index}"}
        sampling = self._sampling() | {"max_new_tokens": 1024, "ignore_eos": False, "json_schema": json.dumps(schema)}
        request = self._request(self._prompted(sampling), self._rng.random() < 0.6)
        right = Request(request.index, request.body, True, lambda text: is_list_of_words(text, items), request.streamed)
        return Generate("constrained", right)

    def _leaving(self) -> Generate:
        sampling = self._sampling() | {"max_new_tokens": 400}
        request = self._request(self._prompted(sampling), True)
        if self._rng.random() < 0.5:
            return Generate("left at once", request, Leave.AT_ONCE, self._rng.uniform(0, AT_ONCE_S))
        return Generate("left amid", request, Leave.AMID, self._rng.randrange(1, MOST_READ))

    def _chat(self) -> Page:
        """Two choices with logprobs, over the other protocol."""
        streamed = self._rng.random() < 0.5
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": self._rng.choice(self._systems)},
                {"role": "user", "content": self._words(self._rng.randrange(2, 20))},
            ],
            "n": 2, "logprobs": True, "top_logprobs": 3, "temperature": 0.8, "seed": self._rng.randrange(1000),
            "max_tokens": self._rng.randrange(*TOKENS), "stream": streamed, **self._salt(),
        }  # fmt: skip
        is_right = _ends_well if streamed else _has_two_choices
        return Page("chat", "POST", "/v1/chat/completions", _encoded(body), is_right=is_right)

    def _aborted(self) -> Abort:
        return Abort("aborted", self._prompt(), 400, self._rng.randrange(1000), self._rng.randrange(1, MOST_READ))

    def _bad(self) -> Page:
        path, body = self._rng.choice(BAD)
        named = {"model": self._model} if path.startswith("/v1/") else {}
        return Page("bad", "POST", path, _encoded(body | named), (400,))

    def _pin(self) -> Page:
        """Left to expire; one that comes while its worker is killed may be refused."""
        body = {"text": self._rng.choice(self._systems), "ttl_s": self._rng.randint(*LEASE_S)} | self._salt()
        return Page("pin", "POST", "/pins", _encoded(body), (200, 429, 503))

    def _tokenized(self) -> Page:
        return Page("tokenize", "POST", "/tokenize", _encoded({"prompt": self._prompt()}))

    def _looked_at(self) -> Page:
        path = self._rng.choice(("/radix?max_nodes=200&edge_ids=16", "/metrics", "/pins", "/v1/models"))
        return Page("look", "GET", path, expected=(200, 503) if path.startswith("/radix") else (200,))

    def _sampling(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "max_new_tokens": self._rng.randrange(*TOKENS),
            "ignore_eos": True,
            "temperature": self._rng.choice((0, 0.7, 1.0)),
            "sampling_seed": self._rng.randrange(1000),
        }
        if self._rng.random() < 0.3:
            found |= {"top_p": 0.9, "top_k": 40}
        return found

    def _prompted(self, sampling: dict[str, Any]) -> dict[str, Any]:
        extra = {"return_logprob": True, "top_logprobs_num": 2} if self._rng.random() < 0.2 else {}
        return {"text": self._prompt(), "sampling_params": sampling} | extra | self._salt()

    def _prompt(self) -> str:
        shared = self._rng.choice(self._systems) if self._rng.random() < 0.6 else ""
        return f"{shared} {self._rng.choice(self._tails)}"

    def _salt(self) -> dict[str, str]:
        salt = self._rng.choice(SALTS)
        return {"cache_salt": salt} if salt else {}

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))

    def _request(self, body: dict[str, Any], streamed: bool) -> Request:
        return Request(self._count, _encoded(body | {"stream": streamed}), streamed=streamed)


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _ends_well(reply: bytes) -> bool:
    return reply.rstrip().endswith(b"data: [DONE]") and b'"error"' not in reply


def _has_two_choices(reply: bytes) -> bool:
    return len(json.loads(reply)["choices"]) == 2
