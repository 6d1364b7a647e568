"""From a chat to the prompt text, by the model's own template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError

from phloem_proto.messages import ChatMessage
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.growth import MAX_TEXT
from phloem_tokenizer.sandbox import BUDGET, Budget, GaveUp, Sandbox

MAX_ERROR_CHARACTERS = 300  # of a template's own message, in the reply
_RESERVED = ("messages", "tools", "bos_token", "eos_token", "raise_exception", "strftime_now")


class ChatTemplate:
    """A compiled template. Rendering keeps no state, so threads may render at once.

    Raises Refused when a chat is rendered and the model has no template or one that is not jinja2.
    """

    def __init__(self, source: str | None, bos_token: str | None, eos_token: str | None) -> None:
        self._specials = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._template: Template | None = None
        self._problem = "this model has no chat template; send a prompt instead"
        if source is not None:
            try:
                self._template = Sandbox().from_string(source)
            except Exception as error:  # whatever jinja2's compiler makes of a hostile source
                self._problem = f"this model's chat template is not valid: {_one_line(error)}"

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        now: datetime,
        tools: str = "",
        template_kwargs: str = "",
        give_up: Callable[[], bool] = lambda: False,
    ) -> str:
        """The prompt, with a generation prompt unless `template_kwargs` says otherwise.

        `now` is what `strftime_now` shows. `give_up` is asked every few hundred steps. Raises Refused: param
        "messages" for anything the template does not take, "tools" and "template_kwargs" for bad JSON, and code
        "deadline" when `give_up` said yes.
        """
        if self._template is None:
            raise Refused("invalid_request", self._problem, "messages")
        variables: dict[str, Any] = {"add_generation_prompt": True, "tools": None}
        variables |= _kwargs(template_kwargs)
        variables |= {
            "messages": [_as_dict(message) for message in messages],
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now.strftime(form),
            **self._specials,
        }
        listed = _tools(tools)
        if listed is None:
            return self._run(variables, give_up)
        try:
            return self._run(variables | {"tools": listed}, give_up)
        except Refused as refusal:  # some templates want only what is inside "function"
            if refusal.info.code == "deadline":
                raise
            flat = [tool["function"] if isinstance(tool, dict) and "function" in tool else tool for tool in listed]
            return self._run(variables | {"tools": flat}, give_up)

    def _run(self, variables: Mapping[str, Any], give_up: Callable[[], bool]) -> str:
        assert self._template is not None
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate({**variables, BUDGET: Budget(give_up)}):
                size += len(part)
                if size > MAX_TEXT:
                    raise Refused(
                        "invalid_request", f"the chat template makes more than {MAX_TEXT} characters", "messages"
                    )
                parts.append(part)
        except Refused:
            raise
        except GaveUp:
            raise Refused("deadline", "the deadline passed while the chat template ran", "messages") from None
        except RecursionError:
            raise Refused("invalid_request", "the chat template nests too deeply", "messages") from None
        except Exception as error:  # a template can fail in as many ways as Python
            raise Refused("invalid_request", f"the chat template failed: {_one_line(error)}", "messages") from error
        return "".join(parts)


def _as_dict(message: ChatMessage) -> dict[str, str]:
    named = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": message.content, **named}


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _kwargs(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused("invalid_request", "template_kwargs must be a JSON object", "template_kwargs")
    for name in _RESERVED:
        if name in value:
            raise Refused("invalid_request", f"template_kwargs may not set {name!r}", "template_kwargs")
    return value


def _tools(text: str) -> list[Any] | None:
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise Refused("invalid_request", "tools must be a JSON list", "tools")
    return value


def _one_line(error: Exception) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= MAX_ERROR_CHARACTERS else line[: MAX_ERROR_CHARACTERS - 3] + "..."
