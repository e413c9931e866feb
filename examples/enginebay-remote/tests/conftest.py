"""A second Enginebay, in a process of its own, to be the upstream server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from enginebay_remote import create
from enginebay_remote.options import Options

from enginebay import Backend, BackendSettings

PLUGIN = """
from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl

SAID = ["<think>", "Hm.", "</think>", "Hel", "lo, ", "wor", "ld\\u2028and ", "all that is in it"]


@hookimpl
def register_backends(register):
    register("scripted", lambda settings: EngineBackend(lambda: ScriptedEngine(SAID)))
"""
CONFIG = """
server:
  port: 0
  api_keys: [secret]
  strict_params: {strict}
models:
  - {{name: said, backend: scripted, path: .}}
"""


@contextmanager
def serving(folder: Path, config: str, plugins: dict[str, str]) -> Iterator[str]:
    """The URL of `enginebay serve` with this config and these single-file plugins."""
    with process_of(folder, config, plugins) as (url, _):
        yield url


@contextmanager
def process_of(
    folder: Path, config: str, plugins: dict[str, str]
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The same, and its process."""
    (folder / "plugins").mkdir(parents=True)
    for name, source in plugins.items():
        (folder / "plugins" / f"{name}.py").write_text(source, encoding="utf-8")
    (folder / "config.yml").write_text(config, encoding="utf-8")
    with ExitStack() as stack:
        errors = stack.enter_context((folder / "stderr").open("w", encoding="utf-8"))
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "enginebay.cli", "serve"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={**os.environ, "COLUMNS": "200", "PYTHONUTF8": "1"},
            )
        )
        stack.callback(process.kill)
        found = ""
        assert process.stdout
        for line in process.stdout:
            found = found or "".join(re.findall(r"http://127\.0\.0\.1:\d+", line)[:1])
            if line.startswith("Model"):
                break
        assert found, (folder / "stderr").read_text(encoding="utf-8")
        yield f"{found}/v1", process


@pytest.fixture(scope="session", params=[False, True], ids=["lenient", "strict"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of a scripted model, which tolerates unknown parameters or does not."""
    config = CONFIG.format(strict=str(request.param).lower())
    with serving(tmp_path_factory.mktemp("remote"), config, {"said": PLUGIN}) as found:
        yield found


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a server of Enginebay's demo model, and the model's folder."""
    pytest.importorskip("torch")
    folder = Path(__file__).parents[3] / "demo" / "model"
    if not folder.is_dir():
        pytest.skip("the demo model is part of Enginebay's repository")
    entry = {"name": "demo", "backend": "hf", "path": str(folder)}
    config = json.dumps({"server": {"port": 0}, "models": [entry]})
    with serving(tmp_path_factory.mktemp("demo"), config, {}) as url:
        yield url, folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the tokenizer of the scripted model: a token is a character."""
    characters = [chr(code) for code in range(32, 127)] + ["\n", "\u2028"]
    vocabulary = {"<end>": 0} | {character: ord(character) for character in characters}
    split = {
        "type": "Split",
        "pattern": {"Regex": "[\\s\\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<end>"},
    }
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"eos_token": "<end>", "chat_template": "{{ messages[-1].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def remote(url: str, model: Path) -> Callable[..., Backend]:
    """`remote(**options)` makes a backend for that server."""

    def make(**options: object) -> Backend:
        values = {"api_key": "secret", "tokenizer": str(model), "retries": 0, **options}
        settings = BackendSettings(name="m", path=url, options=Options.model_validate(values))
        return create(settings)

    return make
