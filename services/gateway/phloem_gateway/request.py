"""The noun of the gateway: a validated wish to generate, whatever edge it came through."""

from __future__ import annotations

from dataclasses import dataclass, field

from phloem_proto.messages import ChatMessage, GrammarSpec


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling wishes, ranges checked. ``max_tokens`` None = the rest of the context."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt and what to do with it. Exactly one of ``text``, ``messages`` and ``ids`` is given."""

    sampling: Sampling
    text: str | None = None
    messages: tuple[ChatMessage, ...] = ()
    ids: tuple[int, ...] | None = None
    add_special_tokens: bool = True
    template_kwargs: str = ""
    grammar: GrammarSpec | None = None
    logprobs: int = -1
    """Alternatives per output token; -1 = no logprobs."""
    prompt_logprobs: int = -1
    logprob_start: int = 0
    salt: str = ""
    extra: str = ""
    """``salt`` and ``extra`` together are the cache namespace."""
    priority: int = 0
    params: dict[str, str] = field(default_factory=dict)
    """The bus's field names to the client's, for errors: keys ``texts``, ``messages``, ``ids``, ``grammar``, ``max_tokens``."""

    @property
    def prompt_param(self) -> str:
        """The client's name of the prompt."""
        return self.params.get("messages" if self.messages else "ids", "prompt")

    @property
    def prompt_bytes(self) -> int:
        """Bytes of prompt ids: exact for ids, else a guess before tokenising (four bytes of text per token of four bytes)."""
        if self.ids is not None:
            return 4 * len(self.ids)
        return len(self.text or "") + sum(len(m.content) + 16 for m in self.messages)
