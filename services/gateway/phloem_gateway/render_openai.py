"""OpenAI replies and chunks, made from frames when they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phloem_proto.messages import End, TextFrame, TokenLogprob

from . import logprobs
from .live import Live
from .parse_openai import OpenAICall


def usage(lives: Sequence[Live]) -> dict[str, Any]:
    """Token counts over all prompts; each prompt counts once however many choices it has."""
    prompt = sum(live.prompt_tokens for live in lives)
    completion = sum(live.completion_tokens for live in lives)
    cached = sum(max(live.cached_tokens, 0) for live in lives)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(slots=True)
class Choice:
    """One choice, gathered."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None


class OpenAIReply:
    """Common part of both kinds of reply.

    Args:
        call: what was asked.
        ident, created, model: shown in every object; ``created`` in Unix seconds.
    """

    object = ""
    chunk_object = ""

    def __init__(self, call: OpenAICall, ident: str, created: int, model: str) -> None:
        self.call = call
        self.n = call.generations[0].sampling.n
        self._head = {"id": ident, "created": created, "model": model}
        self._choices = [Choice() for _ in range(self.n * len(call.generations))]

    def frame(self, prompt: int, frame: TextFrame) -> int:
        """Gather a frame; returns the index of its choice."""
        index = prompt * self.n + frame.child
        choice = self._choices[index]
        choice.text.append(frame.text)
        choice.logprobs.extend(frame.logprobs)
        choice.end = frame.end or choice.end
        return index

    def whole(self, lives: Sequence[Live]) -> dict[str, Any]:
        """The reply, once everything has ended."""
        choices = [self.choice(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._head, "object": self.object, "choices": choices, "usage": usage(lives)}

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """One entry of ``choices``."""
        raise NotImplementedError

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One chunk of a stream. With ``include_usage`` every chunk but the last has ``usage: null``."""
        usage_null = {"usage": None} if self.call.include_usage else {}
        return {**self._head, "object": self.chunk_object, "choices": choices, **usage_null}

    def usage_chunk(self, lives: Sequence[Live]) -> dict[str, Any]:
        """The last chunk with ``include_usage``: no choices, all counts."""
        return {**self._head, "object": self.chunk_object, "choices": [], "usage": usage(lives)}


class ChatReply(OpenAIReply):
    """``chat.completion`` and its chunks: per choice a role, then text, then a finish reason."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": logprobs.chat(choice.logprobs) if self.call.logprobs else None,
            **finish(choice.end),
        }

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before any text: the role of each choice."""
        first = {"role": "assistant", "content": "", "refusal": None}
        return [self.chunk([self._delta(index, first)]) for index in range(len(self._choices))]

    def chunks(self, prompt: int, frame: TextFrame) -> list[dict[str, Any]]:
        """Chunks for one frame: none while its text is held back."""
        index = prompt * self.n + frame.child
        made = []
        if frame.text or (frame.logprobs and self.call.logprobs):
            shown = logprobs.chat(frame.logprobs) if self.call.logprobs else None
            made.append(self.chunk([self._delta(index, {"content": frame.text}, shown)]))
        if frame.end is not None:
            made.append(self.chunk([{**self._delta(index, {}), **finish(frame.end)}]))
        return made

    @staticmethod
    def _delta(index: int, delta: dict[str, Any], shown: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": shown, "finish_reason": None}


class CompletionReply(OpenAIReply):
    """``text_completion``, whole and in chunks (which have the same shape), with the prompt in front when it is to be echoed.

    Args:
        prompts: each prompt's text, with ``echo``.
    """

    object = chunk_object = "text_completion"

    def __init__(self, call: OpenAICall, ident: str, created: int, model: str, prompts: Sequence[str]) -> None:
        super().__init__(call, ident, created, model)
        self._prompts = prompts
        top = call.generations[0].logprobs > 0
        self._shown = [logprobs.CompletionLogprobs(top=top) for _ in self._choices]
        self._prompt_logprobs: list[tuple[TokenLogprob, ...]] = [() for _ in call.generations]
        self._held: list[list[TextFrame]] = [[] for _ in call.generations]
        self._begun = [False] * len(self._choices)

    def frame(self, prompt: int, frame: TextFrame) -> int:
        self._prompt_logprobs[prompt] = frame.prompt_logprobs or self._prompt_logprobs[prompt]
        return super().frame(prompt, frame)

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        prompt = index // self.n
        entries = [*self._prompt_logprobs[prompt], *choice.logprobs]
        return self._entry(index, self._echoed(prompt) + "".join(choice.text), entries, choice.end)

    def opening(self) -> list[dict[str, Any]]:
        """Completions open with text."""
        return []

    def chunks(self, prompt: int, frame: TextFrame) -> list[dict[str, Any]]:
        """Chunks for one frame. With echoed logprobs, other choices wait for those of the prompt, which come with choice 0."""
        self._prompt_logprobs[prompt] = frame.prompt_logprobs or self._prompt_logprobs[prompt]
        held = self._held[prompt]
        held.append(frame)
        if self.call.echo and self.call.logprobs and not self._begun[prompt * self.n] and frame.child != 0:
            return []
        if held[-1].child == 0 and len(held) > 1:
            held.insert(0, held.pop())
        self._held[prompt] = []
        return [made for one in held for made in self._chunk(prompt, one)]

    def _chunk(self, prompt: int, frame: TextFrame) -> list[dict[str, Any]]:
        index = prompt * self.n + frame.child
        text, entries = frame.text, list(frame.logprobs)
        if not self._begun[index]:
            self._begun[index] = True
            text = self._echoed(prompt) + text
            entries = [*self._prompt_logprobs[prompt], *entries]
        if not text and frame.end is None and not (entries and self.call.logprobs):
            return []
        return [self.chunk([self._entry(index, text, entries, frame.end)])]

    def _echoed(self, prompt: int) -> str:
        return self._prompts[prompt] if self.call.echo else ""

    def _entry(self, index: int, text: str, entries: Sequence[TokenLogprob], end: End | None) -> dict[str, Any]:
        shown = self._shown[index].block(entries) if self.call.logprobs else None
        return {"index": index, "text": text, "logprobs": shown, **finish(end)}


def finish(end: End | None) -> dict[str, Any]:
    """``finish_reason``, and which stop it was (an extension)."""
    if end is None:
        return {"finish_reason": None}
    return {"finish_reason": end.reason, "matched_stop": end.matched}
