"""Log lines for people (``console``) and machines (``json``), both with the request they belong to."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import IO, Any

FORMATS = ("console", "json")
LEVELS = ("debug", "info", "warning", "error")

_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message", "request_id"}


LONGEST = 4096
"""Characters of a message; a peer's error text may have millions."""
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS}


def one_line(text: str) -> str:
    """``text`` without what would begin a line or colour it: paths, names and errors come from strangers, who must not write lines of ours.

    The escapes are those of JSON, so that a JSON text stays one.
    """
    return text.translate(_ESCAPES)


def shortened(text: str) -> str:
    """The beginning of a text that is too long for a log."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def about(rid: bytes) -> dict[str, str]:
    """The ``extra`` of a record about a request: its id inside, the first 8 hex digits of ``rid``, which the gateway maps to the client's."""
    return {"request_id": rid[:4].hex()}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as ``extra``, apart from the request id."""
    return {key: value for key, value in sorted(vars(record).items()) if key not in _KNOWN}


class ConsoleFormatter(logging.Formatter):
    """``12:34:56.789 info  scheduler  message [request_id]``.

    Args:
        service: name shown on each line.
        colour: whether levels are coloured.
    """

    def __init__(self, service: str, *, colour: bool) -> None:
        super().__init__()
        self._service = service
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        level = f"{record.levelname.lower():<7}"
        if self._colour and record.levelno in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelno]}m{level}\x1b[0m"
        request = getattr(record, "request_id", None)
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        text = one_line(shortened(f"{record.getMessage()}{extras}") + (f" [{request}]" if request else ""))
        line = f"{clock} {level} {self._service}  {text}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (RFC 3339), ``level``, ``service``, ``logger``, ``message``, ``request_id``, extras, ``exception``."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        request = getattr(record, "request_id", None)
        if request:
            fields["request_id"] = request
        fields.update(_extras(record))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return one_line(json.dumps(fields, default=str, ensure_ascii=False))


def configure(service: str, *, style: str = "console", level: str = "info", stream: IO[str] | None = None) -> None:
    """Set up logging of this process: one handler on ``stream`` (standard error by default), replacing former ones.

    Libraries' loggers stay at ``warning`` unless ``level`` is ``debug``. A logger of ours is named ``phloem...``.
    """
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonFormatter(service) if style == "json" else ConsoleFormatter(service, colour=stream.isatty())
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    ours = logging.getLevelName(level.upper())
    root.setLevel(ours if level == "debug" else max(logging.WARNING, ours))
    logging.getLogger("phloem").setLevel(ours)
