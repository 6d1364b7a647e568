"""`phloem tree`: what it draws of a server's cache, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from phloem.cli import app
from phloem.tree.draw import BAR_CELLS, draw
from phloem.tree.errors import NotSeen, Unusable
from phloem.tree.fetch import Source
from phloem.tree.picture import Copy, Node, Picture, Worker, visible
from phloem.tree.watch import watch

from ..ports import free_port

Answer = tuple[int, bytes]


def worker(name: str, **fields: Any) -> Worker:
    numbers = {"pages": 100, "pages_free": 60, "pages_held": 10, "pages_cached": 30, "pages_locked": 5, "rows": 3}
    return Worker(name, **(numbers | {"share": 0.75, "hit_share": 0.5} | fields))


def node(ident: int, parent: int, text: str | None, workers: dict[str, Copy] | None = None, **fields: Any) -> Node:
    numbers = {"tokens": 16, "wanted": 0, "pinned": 0, "hidden": 0, "salted": False}
    return Node(ident, parent, workers=workers or {}, text=text, **(numbers | fields))


PICTURE = Picture(
    "smollm2", 16, 1234, 5678, 2, 7,
    [worker("gpu-a"), worker("gpu-b", share=0.25, hit_share=0.0)],
    [
        node(0, -1, "You are a helpful assistant.\nBe kind.", {"gpu-a": Copy(2, 9), "gpu-b": Copy(0, 1)}, tokens=1040, hidden=3),
        node(1, 0, "Name three trees", {"gpu-b": Copy(0, 0)}, tokens=1, pinned=1),
        node(2, 0, "What is", wanted=4),
        node(3, -1, None, {"gpu-a": Copy(0, 0)}, salted=True),
        node(4, -1, None, {"gpu-a": Copy(0, 0)}),
    ],
)  # fmt: skip


def body(picture: Picture = PICTURE) -> bytes:
    shown = {name: getattr(picture, name) for name in picture.__struct_fields__}
    return json.dumps(shown, default=lambda one: {name: getattr(one, name) for name in one.__struct_fields__}).encode()


def refusal(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "param": None, "code": "x"}}).encode()


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], Answer | None]) -> Iterator[str]:
    """A server whose GET is ``answer``; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = answer(self)
            if told is None:
                return
            self.send_response(told[0])
            self.send_header("content-length", str(len(told[1])))
            self.end_headers()
            self.wfile.write(told[1])

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tree", *arguments], env={"COLUMNS": "150"})


def printed(picture: Picture, width: int = 150, note: str = "") -> list[str]:
    sink = io.StringIO()
    Console(file=sink, width=width, color_system=None).print(draw(picture, note), highlight=False)
    return [line.rstrip() for line in sink.getvalue().splitlines()]


def test_once_prints_header_workers_and_tree() -> None:
    with serving(lambda _: (200, body())) as url:
        done = invoke("--once", "--url", url)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "smollm2  pages of 16 tokens · 1,234 nodes · 5,678 tokens cached · 2 namespaces · 7 waiting"
    (a,) = [line.split() for line in lines if line.startswith("A")]
    assert (a[:2], a[-7:]) == (["A", "gpu-a"], ["10", "5", "25", "60", "3", "75%", "50%"])
    assert lines[lines.index("prefixes") :] == [
        "prefixes",
        "├── AB “You are a helpful assistant.⏎Be kind.”  1,040 tokens  10 hits  2 locks",
        "│   ├── B “Name three trees”  1 token  1 pinned",
        "│   ├── - “What is”  16 tokens  4 wanted",
        "│   └── … 3 more",
        "├── A (salted)  16 tokens",
        "└── A (no text)  16 tokens",
    ]


def test_an_empty_cache_and_no_worker() -> None:
    lines = printed(Picture("m", 16, 0, 0, 0, 0, [], []))
    assert lines[1] == "no worker"
    assert lines[-1] == "└── nothing is cached"


@pytest.mark.parametrize(
    ("held", "locked", "cached", "free"), [(0, 0, 0, 0), (1, 1, 2, 10_000), (5, 0, 0, 0), (33, 0, 33, 34)]
)
def test_the_bar_shows_every_part_and_fills_its_cells(held: int, locked: int, cached: int, free: int) -> None:
    one = worker(
        "w", pages=held + cached + free, pages_held=held, pages_locked=locked, pages_cached=cached, pages_free=free
    )
    (line,) = [line for line in printed(Picture("m", 16, 0, 0, 0, 0, [one], [])) if line.startswith("A")]
    full, empty = line.count("█"), line.count("░")
    assert full + empty == (BAR_CELLS if held + cached + free else 0)
    assert full >= sum(map(bool, (held, locked, cached - locked)))
    assert (empty > 0) == (free > 0)


def test_long_texts_and_narrow_terminals_are_cut_to_one_line_each() -> None:
    long = Picture("m", 16, 1, 1, 1, 0, [worker("w" * 200)], [node(0, -1, "word " * 100, {"w" * 200: Copy(1, 1)})])
    assert all(len(line) <= 150 for line in printed(long))
    assert "…" in printed(long)[-1]
    narrow = printed(long, 80)
    assert max(map(len, narrow)) <= 80
    assert [len([line for line in lines if "█" in line or "“" in line]) for lines in (narrow, printed(long))] == [2, 2]


def test_eighty_columns_are_enough_for_every_number() -> None:
    (line,) = [line for line in printed(PICTURE, 80) if line.startswith("B")]
    assert line.split()[:2] == ["B", "gpu-b"]
    assert line.split()[-7:] == ["10", "5", "25", "60", "3", "25%", "0%"]


@pytest.mark.parametrize("text", ["\x1b[2J\x1b[31mred", "a\x07b", "\x9b31m", "\u202eback", "line\r\nline\ttab\x00"])
def test_nothing_that_a_prompt_holds_steers_the_terminal(text: str) -> None:
    assert visible(text).isprintable()
    hostile = Picture(text, 16, 1, 1, 1, 0, [worker(text)], [node(0, -1, text, {text: Copy(0, 1)})])
    assert all(char.isprintable() for line in printed(hostile, note=text) for char in line)


def test_markup_in_a_prompt_is_text() -> None:
    assert "[bold]x[/]" in printed(Picture("m", 16, 1, 1, 1, 0, [], [node(0, -1, "[bold]x[/] :smile:")]))[-1]


def test_a_deep_tree_can_be_drawn() -> None:
    nodes = [node(index, index - 1, "x", tokens=index) for index in range(1000)]
    lines = printed(Picture("m", 16, 1000, 1, 1, 0, [], nodes), width=80)
    assert [int(line.split("”")[1].split()[0]) for line in lines if "”" in line] == list(range(1000))
    assert "↳988 - “x”" in lines[-1]


def test_the_key_and_the_bound_travel(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(request: BaseHTTPRequestHandler) -> Answer:
        seen.append((request.path, request.headers["authorization"]))
        return 200, body()

    key = tmp_path / "key"
    key.write_text("# mine\n\nalpha\nbeta\n")
    with serving(answer) as url:
        assert invoke("--once", "--url", f"{url}/", "--max-nodes", "7", "--api-key-file", str(key)).exit_code == 0
        assert invoke("--once", "--url", url).exit_code == 0
    assert seen == [("/radix?max_nodes=7", "Bearer alpha"), ("/radix?max_nodes=200", None)]


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (401, refusal("Incorrect API key provided."), "401 Incorrect API key provided."),
        (404, refusal("This server does not show its cache."), "404 This server does not show its cache."),
        (503, refusal("No scheduler is\nready.\x1b[2J"), "503 No scheduler is⏎ready.·[2J"),
        (500, b"<html>", "500 Internal Server Error"),
        (302, b"", "302 Found"),
        (200, b"{}", "what came is no picture of a prefix cache"),
        (200, b"\xff", "what came is no picture of a prefix cache"),
        (200, b'{"model": 5}', "what came is no picture of a prefix cache"),
    ],
)
def test_a_refusal_is_one_line_and_exit_1(status: int, content: bytes, told: str) -> None:
    with serving(lambda _: (status, content)) as url:
        done = invoke("--once", "--url", url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"phloem tree: {url}: {told}\n"


def test_nobody_there_and_a_broken_reply_are_one_line_and_exit_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True

    done = invoke("--once", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "refused" in done.stderr
    with serving(hang_up) as url:
        done = invoke("--once", "--url", url)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    monkeypatch.setattr("phloem.tree.fetch.MAX_BYTES", 100)
    with serving(lambda _: (200, body())) as url:
        done = invoke("--once", "--url", url)
    assert (done.exit_code, done.stderr) == (1, f"phloem tree: {url}: the reply is larger than 100 bytes\n")


def test_a_key_is_not_carried_along_by_a_redirect() -> None:
    asked: list[str] = []

    def elsewhere(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return 200, body()

    with serving(elsewhere) as other:

        def redirect(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("location", other)
            request.send_header("content-length", "0")
            request.end_headers()

        with serving(redirect) as url, pytest.raises(NotSeen):
            Source(url, max_nodes=1, key="secret").look()
    assert asked == []


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "", "http://x/?a=1", "file:///etc/passwd"])
def test_a_url_that_is_none_is_exit_2(url: str) -> None:
    with pytest.raises(Unusable):
        Source(url, max_nodes=1)
    done = invoke("--once", "--url", url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("phloem tree: --url must be like")


@pytest.mark.parametrize(
    "arguments", [["--interval", "0"], ["--max-nodes", "0"], ["--max-nodes", "2001"], ["--interval", "x"], ["--fast"]]
)
def test_wrong_options_are_exit_2(arguments: list[str]) -> None:
    assert invoke("--once", *arguments).exit_code == 2


def test_key_files_that_are_no_use_and_a_pipe_without_once_are_exit_2(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    for path in (empty, tmp_path / "missing"):
        done = invoke("--once", "--api-key-file", str(path))
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    done = invoke()
    assert (done.exit_code, done.stderr) == (2, "phloem tree: this is no terminal: give --once\n")


def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    answers: list[Picture | NotSeen] = [
        PICTURE, NotSeen("it is away"), PICTURE, NotSeen("it says no", final=True), PICTURE
    ]  # fmt: skip
    sink = io.StringIO()

    def look() -> Picture:
        told = answers.pop(0)
        if isinstance(told, NotSeen):
            raise told
        return told

    console = Console(file=sink, width=150, height=40, force_terminal=True)
    with pytest.raises(NotSeen, match="it says no"):
        watch(look, console, 1.0, sleep=lambda _: None)
    frames = sink.getvalue().split("\x1b[H")
    assert ["it is away" in frame for frame in frames if "gpu-a" in frame] == [False, True, False]
    assert len(answers) == 1


@pytest.mark.integration
@pytest.mark.alone
def test_in_a_terminal_it_draws_until_interrupted() -> None:
    asked = threading.Semaphore(0)
    # Started in the background, a shell may have told us, and so all that we start, to ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def answer(_: BaseHTTPRequestHandler) -> Answer:
        asked.release()
        return 200, body()

    with serving(answer) as url:
        ours, theirs = pty.openpty()
        command = [str(Path(sys.executable).parent / "phloem"), "tree", "--url", url, "--interval", "0.1"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment)
        os.close(theirs)
        shown, end = b"", time.monotonic() + 60
        while shown.count(b"gpu-a") < 3:
            assert time.monotonic() < end, shown
            if select.select([ours], [], [], 0.5)[0]:
                shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        reader = threading.Thread(target=_drain, args=(ours,))
        reader.start()
        assert process.stderr is not None
        _, told = process.communicate(timeout=30)
        reader.join(10)
        os.close(ours)
    assert (process.returncode, told) == (130, b"")
    assert asked.acquire(timeout=1)


def _drain(descriptor: int) -> None:
    """Read what is still written, so that nobody waits for room; a closed terminal is an error on Linux."""
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        return
