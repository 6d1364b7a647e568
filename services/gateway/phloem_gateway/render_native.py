"""``/generate`` replies: the text so far and ``meta_info``, whole or (cumulatively) streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phloem_proto.codec import unpack_ids
from phloem_proto.messages import End, TextFrame, TokenLogprob

from . import logprobs
from .live import Live
from .parse_native import NativeCall


@dataclass(slots=True)
class _Choice:
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None


class NativeReply:
    """Gathers frames. Choice i*n + c is child c of prompt i.

    Args:
        request_id: the base of the ids of those prompts that came without one.
    """

    def __init__(self, call: NativeCall, request_id: str) -> None:
        self.call = call
        self._n = call.generations[0].sampling.n
        self._choices = [_Choice() for _ in range(self._n * len(call.generations))]
        self._prompt_logprobs: list[tuple[TokenLogprob, ...]] = [() for _ in call.generations]
        self._idents = [self._ident(index, request_id) for index in range(len(self._choices))]

    def _ident(self, index: int, request_id: str) -> str:
        prompt, child = divmod(index, self._n)
        base = self.call.rids[prompt] or (request_id if len(self.call.rids) == 1 else f"{request_id}-{prompt}")
        return base if self._n == 1 else f"{base}-{child}"

    def frame(self, prompt: int, frame: TextFrame) -> int:
        """Gather a frame; returns the index of its choice."""
        index = prompt * self._n + frame.child
        choice = self._choices[index]
        choice.text += frame.text
        choice.ids.extend(unpack_ids(frame.ids))
        choice.logprobs.extend(frame.logprobs)
        choice.end = frame.end or choice.end
        self._prompt_logprobs[prompt] = frame.prompt_logprobs or self._prompt_logprobs[prompt]
        return index

    def whole(self, lives: Sequence[Live], elapsed_s: float) -> list[dict[str, Any]]:
        """Every choice."""
        return [self.item(index, lives, elapsed_s) for index in range(len(self._choices))]

    def item(self, index: int, lives: Sequence[Live], elapsed_s: float) -> dict[str, Any]:
        """One choice as it stands."""
        choice, prompt = self._choices[index], index // self._n
        live = lives[prompt]
        meta: dict[str, Any] = {
            "id": self._idents[index],
            "finish_reason": _finish(choice.end, len(choice.ids)),
            "prompt_tokens": live.prompt_tokens,
            "completion_tokens": len(choice.ids),
            "cached_tokens": max(live.cached_tokens, 0),
            "e2e_latency": elapsed_s,
        }
        if self.call.logprobs:
            meta |= self._logprobs(choice, prompt)
        shown: dict[str, Any] = {"text": choice.text, "output_ids": choice.ids, "meta_info": meta}
        return shown | ({"index": index} if self.call.batch else {})

    def _logprobs(self, choice: _Choice, prompt: int) -> dict[str, Any]:
        text = self.call.text_in_logprobs
        given = self._prompt_logprobs[prompt]
        shown: dict[str, Any] = {
            "input_token_logprobs": logprobs.native(given, text=text),
            "output_token_logprobs": logprobs.native(choice.logprobs, text=text),
            "output_token_logprobs_length": len(choice.logprobs),
        }
        if self.call.generations[prompt].logprobs > 0:
            shown["input_top_logprobs"] = logprobs.native_top(given, text=text)
            shown["output_top_logprobs"] = logprobs.native_top(choice.logprobs, text=text)
        return shown


def _finish(end: End | None, tokens: int) -> dict[str, Any] | None:
    if end is None:
        return None
    if end.reason == "length":
        return {"type": "length", "length": tokens}
    if end.reason == "stop":
        return {"type": "stop", "matched": end.matched}
    return {"type": "abort", "message": end.message}
