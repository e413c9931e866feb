"""How far one chat travels through the code, and what the kernel carries: ceilings that only fall.

`python -m tests.test_path` prints today's numbers. Lower a ceiling with the change that earns it.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from enginebay.server.services import Services
from enginebay.testing import ScriptedEngine
from tests.support import InlineBackend, plugins_with, scripted_config, serve

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "core" / "enginebay"
CEILINGS = {
    "files of a chat": 84,
    "functions of a chat": 400,
    "moves between files of a chat": 441,
    "moves between rooms of a chat": 179,
    "modules of the app": 322,
    "files of the kernel": 434,
    "lines of the kernel": 51941,
    "files of the kernel that name a wing": 1,
    "fields of Services": 11,
    "lines of config.yml": 73,
}
WINGS = re.compile(r"kobold|ollama|cluster|\bray\b", re.IGNORECASE)


@dataclass
class Way:
    """The calls of Enginebay's own functions, in order, while a thread is profiled."""

    files: set[str] = field(default_factory=set)
    functions: set[CodeType] = field(default_factory=set)
    file_moves: int = 0
    room_moves: int = 0
    last: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        ours = file.startswith(f"{KERNEL}/") and "/testing/" not in file
        if event == "call" and ours:
            self.functions.add(frame.f_code)
            self.files.add(file)
            self.file_moves += file != self.last
            self.room_moves += room(file) != room(self.last)
            self.last = file


def room(file: str) -> str:
    """The package of the kernel that a file is in."""
    return file.removeprefix(f"{KERNEL}/").partition("/")[0]


def way_of_a_chat() -> Way:
    """A chat after the first of a server whose engine runs on the event loop."""
    ways = [Way() for _ in range(3)]

    async def profile(function: Callable[..., Any] | None) -> None:
        sys.setprofile(function)

    plugins = plugins_with(
        scripted=lambda _: InlineBackend(ScriptedEngine(["Hello", " there", "."]))
    )
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    with serve(scripted_config(), plugins) as server:
        for function in (None, *ways):
            server.settle()
            server.run(profile(function))
            answer = server.http.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "Hello there."
        server.settle()
        server.run(profile(None))
    return min(ways, key=lambda way: way.file_moves)  # a timer can go off in the middle of one


def modules_of_the_app() -> list[str]:
    """Enginebay's modules that the app imports before any request."""
    code = (
        "import sys, enginebay.server.app, enginebay.plugins; enginebay.plugins.Plugins(); "
        "print(*(n for n in sys.modules if n.split('.')[0] == 'enginebay'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def kernel_files() -> list[Path]:
    return [*KERNEL.rglob("*.py")]


def numbers() -> dict[str, int]:
    """Every measured number by its name in `CEILINGS`."""
    way = way_of_a_chat()
    texts = [file.read_text(encoding="utf-8") for file in kernel_files()]
    return {
        "files of a chat": len(way.files),
        "functions of a chat": len(way.functions),
        "moves between files of a chat": way.file_moves,
        "moves between rooms of a chat": way.room_moves,
        "modules of the app": len(modules_of_the_app()),
        "files of the kernel": len(texts),
        "lines of the kernel": sum(text.count("\n") for text in texts),
        "files of the kernel that name a wing": sum(bool(WINGS.search(text)) for text in texts),
        "fields of Services": len(fields(Services)),
        "lines of config.yml": (ROOT / "config.yml").read_text(encoding="utf-8").count("\n"),
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, int]:
    return numbers()


@pytest.mark.parametrize("name", CEILINGS)
def test_no_number_rises(name: str, measured: dict[str, int]) -> None:
    assert measured[name] <= CEILINGS[name]


def test_every_number_has_a_ceiling(measured: dict[str, int]) -> None:
    assert measured.keys() == CEILINGS.keys()


if __name__ == "__main__":
    for name, number in numbers().items():
        print(f'    "{name}": {number},')
