"""A machine without an engine's library: the server starts and says which extra to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import DEMO_MODEL, REPOSITORY

CODE = """
import asyncio, sys
from core.server.app import create_app
from core.config.schema import Config
from core.plugins import Plugins

async def main(name, isolation, path):
    model = {"name": "m", "backend": name, "isolation": isolation, "path": path}
    app = create_app(Config.model_validate({"models": [model]}), Plugins())
    await app.state.services.models.load_at_start()
    [model] = app.state.services.models.all()
    print(model.state, model.error)

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(("backend", "library"), [("hf", "torch"), ("llamacpp", "llama_cpp")])
def test_a_missing_library_is_named(
    backend: str, library: str, isolation: str, tmp_path: Path
) -> None:
    (tmp_path / "absent").mkdir()
    absent = tmp_path / "absent" / f"{library}.py"
    absent.write_text(f"raise ImportError(\"No module named '{library}'\")")
    script = tmp_path / "load.py"
    script.write_text(CODE)
    paths = os.pathsep.join(map(str, (absent.parent, REPOSITORY)))
    result = subprocess.run(
        [sys.executable, str(script), backend, isolation, str(DEMO_MODEL)],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert result.stdout.startswith("failed")
    assert f"No module named '{library}'" in result.stdout
    assert f"pip install 'enginebay[{backend}]'" in result.stdout
