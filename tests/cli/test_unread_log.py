"""A server whose log nobody reads, for example in a terminal after Ctrl-S. SEC-4"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="its pipes and terminals are others")

LINES = 8_000
ENGINE = f"""
import logging, os, sys

from enginebay.testing import ScriptedEngine


def talk(prompt, index):
    if prompt == "log":
        for number in range({LINES}):
            logging.getLogger("talk").warning("line %d %s", number, "x" * 200)
    elif prompt == "print":
        for stream in (sys.stdout, sys.stderr):
            print(("x" * 200 + "\\n") * {LINES}, file=stream, flush=True)
    elif prompt == "native":
        for stream in (1, 2):
            os.write(stream, b"native " * 100_000 + b"\\n")
    return ["ok"]


def engine():
    return ScriptedEngine(talk)
"""
PLUGIN = """
from enginebay import EngineBackend, hookimpl
from talking_engine import engine


@hookimpl
def register_backends(register):
    register("thread", lambda settings: EngineBackend(engine))
    register("process", lambda settings: EngineBackend(engine, isolation="process"))
"""
CONFIG = """\
server: {port: 0, auth: none}
models:
  - {name: thread, backend: thread, path: .}
  - {name: process, backend: process, path: .}
"""


class Unread:
    """`enginebay serve`, and the end of its log that a test may read."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.read_end = end
        assert process.stdout
        for line in process.stdout:
            if url := re.search(rb"listens on (\S+);", line):
                break
        self.http = httpx2.Client(base_url=url[1].decode(), timeout=60)

    def ask(self, model: str, prompt: str) -> None:
        """Have a model print something, and then get its answer."""
        body = {"model": model, "prompt": prompt, "max_tokens": 8}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == "ok"
        assert self.http.get("/health").status_code == 200

    @property
    def dropped(self) -> int:
        """Dropped lines, by the metrics."""
        text = self.http.get("/metrics").text
        found = re.search(r"^enginebay:log_lines_dropped_total (\S+)$", text, re.MULTILINE)
        assert found
        return int(float(found[1]))

    def lines_until(self, pattern: str) -> list[str]:
        """Read the log up to a line with this pattern."""
        data = b""
        while not re.search(pattern.encode() + rb".*\n", data):
            more = os.read(self.read_end, 1 << 16)
            assert more, f"the log has ended without {pattern!r}"
            data += more
        return data.decode(errors="replace").splitlines()

    def stop(self) -> int:
        """Stop the server; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


Start = Callable[[str], Unread]


@pytest.fixture
def start(clean_place: Path) -> Iterator[Start]:
    """`start("pipe")` or `start("terminal")`: what the log is written to."""
    Path("talking_engine.py").write_text(ENGINE, encoding="utf-8")
    Path("plugins").mkdir()
    Path("plugins/talking.py").write_text(PLUGIN, encoding="utf-8")
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    with ExitStack() as stack:

        def started(kind: str) -> Unread:
            read_end, write_end = os.openpty() if kind == "terminal" else os.pipe()
            process = subprocess.Popen(
                [sys.executable, "-m", "enginebay.cli", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=write_end,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(clean_place), *sys.path])},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            stack.callback(os.close, read_end)
            os.close(write_end)
            server = Unread(process, read_end)
            stack.enter_context(server.http)
            return server

        yield started


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [("pipe", "log"), ("pipe", "print"), ("pipe", "native"), ("terminal", "print")],
)
def test_it_stops_neither_the_server_nor_an_engine(start: Start, kind: str, prompt: str) -> None:
    """Whoever prints: the log, Python code, or native code of an engine in its process."""
    server = start(kind)
    for _ in range(2):
        server.ask("process", prompt)
        if prompt != "native":
            server.ask("thread", prompt)
    assert server.dropped > 0
    assert server.stop() == 0


def test_a_log_that_is_read_again_says_what_it_lacks(start: Start) -> None:
    """Lines that are there and lines that were dropped are all lines."""
    server = start("pipe")
    server.ask("thread", "log")
    dropped = server.dropped
    assert 0 < dropped < LINES
    lines = server.lines_until("stderr: \\d+ lines were dropped, because nothing read them")
    assert int(re.search(r"stderr: (\d+) lines", lines[-1])[1]) >= dropped  # type: ignore[index]
    kept = [int(line.split()[4]) for line in lines if " talk: line " in line]
    assert kept == list(range(len(kept)))  # in order, and the gap is behind them
    assert LINES - len(kept) <= server.dropped
    server.http.get("/after")
    assert "/after" in server.lines_until("/after")[-1]


def test_a_log_whose_reader_has_gone_stops_nothing(start: Start) -> None:
    server = start("pipe")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, server.read_end)
    os.close(null)
    server.ask("thread", "log")
    assert server.dropped >= LINES
    assert server.stop() == 0


def test_nothing_is_lost_at_the_end(start: Start) -> None:
    """However slowly somebody reads the log."""
    server = start("pipe")
    for number in range(300):
        server.http.get(f"/{number}{'x' * 400}")
    server.process.send_signal(signal.SIGTERM)
    lines = server.lines_until("stopping; ")
    assert sum("GET /" in line for line in lines) == 300
    assert server.process.wait(60) == 0
