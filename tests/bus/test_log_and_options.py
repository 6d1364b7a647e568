"""Log lines, and the flags that all services share."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from phloem_bus import log
from phloem_bus.errors import ConfigError
from phloem_bus.options import CommonOptions, short_name
from phloem_proto.subjects import Role


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("phloem")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def lines(style: str, level: str = "info") -> tuple[io.StringIO, logging.Logger]:
    stream = io.StringIO()
    log.configure("gateway", style=style, level=level, stream=stream)
    return stream, logging.getLogger("phloem.test")


def test_json_lines_hold_message_request_extras_and_exception() -> None:
    stream, logger = lines("json")
    logger.info("done in %d ms", 12, extra={"request_id": "abcd1234", "tokens": 3})
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        "level": "info",
        "service": "gateway",
        "logger": "phloem.test",
        "message": "done in 12 ms",
        "request_id": "abcd1234",
        "tokens": 3,
    }
    assert "ValueError: bad" in second["exception"]


def test_console_lines_hold_the_same() -> None:
    stream, logger = lines("console")
    logger.warning("slow", extra={"request_id": "abcd1234", "tokens": 3})
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} warning gateway  slow tokens=3 \[abcd1234\]\n", stream.getvalue())


@pytest.mark.parametrize("style", log.FORMATS)
def test_what_strangers_chose_stays_within_its_line(style: str) -> None:
    stream, logger = lines(style)
    for mark in ("\n", "\r", "\x1b[2J", "\x85", "\u2028", "\x00", "\x9b"):
        logger.info("GET %s %d", f"/{mark}12:00:00.000 error gateway  forged", 404, extra={"name_of_it": f"a{mark}b"})
    assert len(stream.getvalue().splitlines()) == 7
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", stream.getvalue())
    logger.info("refused: %s", "x" * 1_000_000)
    assert len(stream.getvalue().splitlines()[-1]) < 5000


def test_levels_apply_to_us_and_libraries_stay_quiet() -> None:
    stream, logger = lines("json")
    logger.debug("no")
    logger.info("yes")
    logging.getLogger("nats").info("no")
    logging.getLogger("nats").warning("yes")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["yes", "yes"]


def test_defaults_are_filled_in() -> None:
    first, second = CommonOptions.of(Role.GRAMMAR), CommonOptions.of(Role.GRAMMAR)
    assert re.fullmatch(r"grammar-[0-9a-f]{8}", first.instance)
    assert first.instance != second.instance
    assert first.served_model_name == "smollm2"
    assert first.nats.inbox == f"_INBOX_grammar.{first.instance}"


def test_a_password_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    common = CommonOptions.of(Role.GRAMMAR, nats_user="grammar", nats_password_file=tmp_path / "password")
    assert common.nats.password == "s3cret"
    assert "s3cret" not in repr(common)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"),
        ("/m/Smol.Q4_1.gguf", "Smol.Q4_1"),
        ("org/Model-1B", "Model-1B"),
        ("/m/folder/", "folder"),
    ],
)
def test_short_names(model: str, name: str) -> None:
    assert short_name(model) == name


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("--model", {"model": " "}),
        ("--namespace", {"namespace": "a.b"}),
        ("--instance", {"instance": "a b"}),
        ("--instance", {"instance": "all"}),
        ("--log-level", {"log_level": "loud"}),
        ("--log-format", {"log_format": "xml"}),
        ("--drain-seconds", {"drain_seconds": -1.0}),
        ("--metrics-port", {"metrics_port": 70000}),
        ("--nats-url", {"nats_url": "nats://u:p@host:4222"}),
        ("--nats-password-file", {"nats_password_file": Path("/does/not/exist")}),
        ("--nats-tls-ca", {"nats_tls_ca": Path("/does/not/exist")}),
        ("--nats-tls-key", {"nats_tls_cert": Path("/does/not/exist")}),
        ("--nats-tls-cert", {"nats_tls_key": Path("/does/not/exist")}),
        ("--nats-tls-cert", {"nats_tls_cert": Path("/does/not/exist"), "nats_tls_key": Path("/does/not/exist")}),
    ],
)
def test_what_cannot_be_used_is_named_by_its_flag(flag: str, setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        CommonOptions.of(Role.GRAMMAR, **setting)  # type: ignore[arg-type]
    assert caught.value.setting == flag
