"""Refusals of this service: each becomes an `ErrorInfo` in a reply."""

from phloem_proto.messages import ErrorInfo


class Refused(Exception):
    """Raised when a request can't be served; `info` is what the caller gets."""

    def __init__(self, code: str, message: str, param: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.info = ErrorInfo(code, message, param, retry_after_ms)
