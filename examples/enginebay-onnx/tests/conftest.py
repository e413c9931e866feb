"""The demo model of Enginebay's repository, converted, and servers of it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from enginebay_onnx import Options
from enginebay_onnx.convert import convert

from enginebay import Engine

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model of the demo model."""
    if not (REPOSITORY / "demo" / "model").is_dir():
        pytest.skip("the demo model is part of Enginebay's repository")
    target = tmp_path_factory.mktemp("demo") / "model"
    command = [sys.executable, "-m", "demo.language_model", "demo/model", str(target)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    return target


@pytest.fixture(scope="session")
def folder(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted demo model."""
    target = tmp_path_factory.mktemp("onnx") / "demo"
    convert(demo, target, "fp32")
    return target


@pytest.fixture
def engine(folder: Path) -> Callable[..., Engine]:
    """`engine(**options)` makes an engine of the demo model."""

    def make(**options: object) -> Engine:
        from enginebay_onnx.loading import load_engine

        chosen = Options.model_validate({"threads": 1, **options})
        return load_engine(str(folder), chosen, lambda stage, fraction: None)

    return make


@pytest.fixture(scope="session")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `enginebay serve` with the demo model."""
    home = tmp_path_factory.mktemp("server")
    entry = {"name": "demo", "backend": "onnx", "path": str(folder), "options": {"threads": 1}}
    config = {"server": {"port": 0}, "models": [entry]}
    (home / "config.yml").write_text(json.dumps(config), encoding="utf-8")
    with ExitStack() as stack:
        errors = stack.enter_context((home / "stderr").open("w", encoding="utf-8"))
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "enginebay.cli", "serve"],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
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
        assert found, (home / "stderr").read_text(encoding="utf-8")
        yield f"{found}/v1"
