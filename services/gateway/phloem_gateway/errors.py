"""What a client can be told, and how each thing is said over HTTP and gRPC.

Everything that reaches a client passes through `ApiError`. Its texts are written here, in the validators, or by another
service for a client's eyes (`ErrorInfo`); exceptions' own texts never travel.
"""

from __future__ import annotations

import math

from phloem_proto.messages import ErrorInfo

CODES: dict[str, tuple[int, str, str]] = {
    # code: (HTTP status, OpenAI error type, gRPC status name)
    "invalid_request": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "invalid_json": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "missing_required_parameter": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "invalid_type": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "invalid_value": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "unsupported_parameter": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "unsupported_value": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "context_length_exceeded": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "grammar_invalid": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "grammar_unsupported": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "grammar_too_large": (400, "invalid_request_error", "INVALID_ARGUMENT"),
    "not_idle": (400, "invalid_request_error", "FAILED_PRECONDITION"),
    "invalid_api_key": (401, "authentication_error", "UNAUTHENTICATED"),
    "model_not_found": (404, "invalid_request_error", "NOT_FOUND"),
    "not_found": (404, "invalid_request_error", "NOT_FOUND"),
    "method_not_allowed": (405, "invalid_request_error", "UNIMPLEMENTED"),
    "request_timeout": (408, "invalid_request_error", "DEADLINE_EXCEEDED"),
    "aborted": (409, "request_aborted", "ABORTED"),
    "duplicate_request_id": (409, "invalid_request_error", "ALREADY_EXISTS"),
    "request_too_large": (413, "invalid_request_error", "INVALID_ARGUMENT"),
    "unsupported_media_type": (415, "invalid_request_error", "INVALID_ARGUMENT"),
    "rate_limit_exceeded": (429, "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "headers_too_large": (431, "invalid_request_error", "INVALID_ARGUMENT"),
    "internal_error": (500, "server_error", "INTERNAL"),
    "service_unavailable": (503, "service_unavailable_error", "UNAVAILABLE"),
    "deadline_exceeded": (504, "timeout_error", "DEADLINE_EXCEEDED"),
}
"""Every code a client may see."""

_FROM_BUS = {
    "invalid_request": "invalid_request",
    "prompt_too_long": "context_length_exceeded",
    "grammar_invalid": "grammar_invalid",
    "grammar_unsupported": "grammar_unsupported",
    "grammar_too_large": "grammar_too_large",
    "queue_full": "rate_limit_exceeded",
    "unavailable": "service_unavailable",
    "draining": "service_unavailable",
    "busy": "service_unavailable",
    "stale": "service_unavailable",
    "deadline": "deadline_exceeded",
    "too_large": "request_too_large",
    "not_found": "not_found",
    "aborted": "aborted",
}

_GENERIC = "The server could not finish this request. Give the request id when you report it."


class ApiError(Exception):
    """Raised when a request gets an error instead of an answer (or instead of the rest of it).

    Args:
        code: a key of `CODES`.
        message: one sentence for the client.
        param: the field at fault in the client's terms, if one is.
        retry_after_s: when to come back, in seconds (429 and 503).
    """

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """HTTP status."""
        return CODES[self.code][0]

    @property
    def kind(self) -> str:
        """OpenAI's ``type``."""
        return CODES[self.code][1]

    @property
    def grpc_status(self) -> str:
        """Name of the gRPC status code."""
        return CODES[self.code][2]

    @property
    def retry_after(self) -> int | None:
        """Whole seconds for a ``Retry-After`` header, at least 1; None when a retry is pointless."""
        return None if self.retry_after_s is None else max(1, math.ceil(self.retry_after_s))

    def body(self) -> dict[str, dict[str, str | None]]:
        """The OpenAI error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def internal() -> ApiError:
    """An error that says nothing of its cause; the log has that under the request id."""
    return ApiError("internal_error", _GENERIC)


def unavailable(message: str, retry_after_s: float = 1.0) -> ApiError:
    """A 503 with Retry-After."""
    return ApiError("service_unavailable", message, retry_after_s=retry_after_s)


def from_info(info: ErrorInfo, params: dict[str, str]) -> ApiError:
    """A refusal by another service, in the client's terms.

    Args:
        params: the bus's field names to the client's (``ids`` -> ``prompt``).
    """
    code = _FROM_BUS.get(info.code, "internal_error")
    if code == "internal_error":
        return internal()
    param = (params.get(info.param, info.param) or None) if CODES[code][0] == 400 else None
    if param is None and code.startswith("grammar_"):
        param = params.get("grammar")
    retry = info.retry_after_ms / 1000.0 if info.retry_after_ms else 1.0
    return ApiError(code, info.message, param=param, retry_after_s=retry if CODES[code][0] in (429, 503) else None)
