"""Chat messages, flattened to what a template takes."""

from __future__ import annotations

from collections.abc import Sequence

from phloem_proto.messages import ChatMessage

from . import bodies
from .checks import invalid, refuse, unicode_text
from .errors import ApiError
from .limits import MAX_MESSAGES, MAX_PARTS

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def flatten(messages: Sequence[bodies.Message]) -> tuple[ChatMessage, ...]:
    """Role, text and name of each message. ``developer`` becomes ``system``, the name that templates know.

    Raises:
        ApiError: no messages, too many, an unknown role, no content, or content that is not text.
    """
    if not messages:
        raise invalid("messages", "at least one message")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES} messages", len(messages))
    return tuple(_one(f"messages[{i}]", message) for i, message in enumerate(messages))


def _one(where: str, message: bodies.Message) -> ChatMessage:
    if message.role not in ROLES:
        raise invalid(f"{where}.role", "one of " + ", ".join(f"'{role}'" for role in ROLES), message.role[:32])
    refuse((f"{where}.{key}", getattr(message, key)) for key in ("tool_calls", "function_call", "audio"))
    role = "system" if message.role == "developer" else message.role
    name = unicode_text(f"{where}.name", message.name or "")
    return ChatMessage(role, _content(f"{where}.content", message.content, optional=role == "assistant"), name)


def _content(where: str, content: str | list[bodies.ContentPart] | None, *, optional: bool) -> str:
    if content is None:
        if optional:
            return ""
        raise ApiError("missing_required_parameter", f"Missing required parameter: '{where}'.", param=where)
    if isinstance(content, str):
        return unicode_text(where, content)
    if not content:
        raise invalid(where, "at least one content part")
    if len(content) > MAX_PARTS:
        raise invalid(where, f"at most {MAX_PARTS} content parts", len(content))
    return "".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: bodies.ContentPart) -> str:
    if part.type != "text":
        kind = part.type[:32]
        raise ApiError(
            "unsupported_value",
            f"Content of type '{kind}' is not supported by this server: only 'text' is.",
            param=f"{where}.type",
        )
    if part.text is None:
        raise ApiError(
            "missing_required_parameter", f"Missing required parameter: '{where}.text'.", param=f"{where}.text"
        )
    return unicode_text(f"{where}.text", part.text)
