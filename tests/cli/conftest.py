import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from enginebay.cli.program import program
from tests.config.conftest import clean_place as clean_place

Run = Callable[..., Result]
StartServing = Callable[..., "Serving"]

PLUGIN = """
from enginebay.testing import ScriptedEngine
from enginebay import BackendUnavailableError, EngineBackend, hookimpl

PIECES = ["<think>", "Hm.", "</think>", "Hello", ", ", "world"]
SERVES = {"script": True, "other": False}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<think></think>"


def create(settings):
    settings.report_progress("warming up", 0.5)
    settled = {"chat_template": TEMPLATE, "constraints": settings.name != "free"}
    return EngineBackend(lambda: ScriptedEngine(PIECES, **settled))


def fail(settings):
    raise BackendUnavailableError("out of memory; take a smaller model")


@hookimpl
def register_backends(register):
    register("scripted", create, serves=lambda path: SERVES[path.name])
    register("failing", fail)
"""


@pytest.fixture(autouse=True)
def log_of_commands_stays(log_stays: None) -> None:
    """Commands set up logging."""


@pytest.fixture
def run() -> Run:
    """`run("config", "check")` runs a command in this process."""
    return lambda *arguments, **more: CliRunner().invoke(program(), arguments, **more)


@pytest.fixture
def plugin() -> Path:
    """A plugin with the backends `scripted` and `failing`, found from the current folder."""
    Path("plugins").mkdir()
    file = Path("plugins/for_tests.py")
    file.write_text(PLUGIN, encoding="utf-8")
    return file


@dataclass
class Serving:
    """`enginebay serve` in a process of its own."""

    process: subprocess.Popen[str]
    errors: Path

    def lines_until(self, pattern: str) -> list[str]:
        """The next lines of stdout, up to one with `pattern`."""
        assert self.process.stdout
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line.rstrip("\n"))
            if re.search(pattern, line):
                return lines
        pytest.fail(f"ended without {pattern!r}: {lines}\n{self.log}")

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self.errors.read_text(encoding="utf-8")

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def start_serving(tmp_path: Path) -> Iterator[StartServing]:
    """`start_serving("--port", "0")` runs `enginebay serve` with these arguments."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Serving:
            errors = tmp_path / f"stderr{len(list(tmp_path.glob('stderr*')))}"
            process = subprocess.Popen(
                [sys.executable, "-m", "enginebay.cli", "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(errors.open("w", encoding="utf-8")),
                text=True,
                encoding="utf-8",
                env={**os.environ, "COLUMNS": "60", "PYTHONUTF8": "1"},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return Serving(process, errors)

        yield start
