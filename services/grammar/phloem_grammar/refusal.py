"""How a grammar is refused: always with a reason that the client can act on."""

from __future__ import annotations

from phloem_proto.messages import ErrorInfo

INVALID = "grammar_invalid"
"""The source is no well-formed grammar of its kind, or nothing can satisfy it."""
UNSUPPORTED = "grammar_unsupported"
"""Well formed, but no engine enforces it completely."""
TOO_LARGE = "grammar_too_large"
"""Over a stated limit of size or cost."""

MESSAGE_MAX = 500
"""Characters of a refusal's message: enough for a keyword, its pointer and a parser's complaint, not for a schema."""


class Refused(Exception):
    """Raised when a spec can't be served. ``code`` is one of this module's constants; ``message`` is shown to the client.

    ``keyword`` and ``pointer`` (RFC 6901, "" = the root) say where in a schema; ``limit`` names the limit that was hit.
    """

    def __init__(
        self, code: str, message: str, *, keyword: str = "", pointer: str | None = None, limit: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.keyword = keyword
        self.pointer = pointer
        self.limit = limit

    def info(self) -> ErrorInfo:
        """The refusal as it travels on the bus."""
        where = "" if self.pointer is None else f" (at {self.pointer or 'the root'})"
        return ErrorInfo(self.code, clip(self.message, MESSAGE_MAX - len(where)) + where, param="grammar")


def clip(text: str, most: int) -> str:
    """``text`` on one line, cut to ``most`` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= most else flat[: max(0, most - 1)] + "…"


def over_limit(limit: str, found: object, most: object, *, pointer: str | None = None) -> Refused:
    """A refusal that names the limit, what was found and what is allowed."""
    return Refused(TOO_LARGE, f"grammar over the limit {limit}: {found}, at most {most}", limit=limit, pointer=pointer)
