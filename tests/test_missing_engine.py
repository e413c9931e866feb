"""A machine without an engine's library: the server starts and says which extra to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay import BackendUnavailableError, Engine, EngineBackend
from enginebay.config.schema import Config
from enginebay.testing import ScriptedEngine
from tests.support import DEMO_MODEL, REPOSITORY, plugins_with, serve

CODE = """
import asyncio, sys
from enginebay.server.app import create_app
from enginebay.config.schema import Config
from enginebay.plugins import Plugins

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


@pytest.mark.parametrize("configured", [False, True])
def test_a_library_that_is_installed_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    """A model of the folder is listed without it, and answers as soon as it is there; so does one
    that could not be loaded at start.
    """
    library = f"library_of_toys_configured_{configured}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.toy").touch()

    def start() -> Engine:
        try:
            __import__(library)
        except ImportError as error:
            raise BackendUnavailableError("install it: python3 start.py install toys") from error
        return ScriptedEngine(["here it is"])

    plugins = plugins_with()
    plugins.backends(
        "toys",
        lambda settings: EngineBackend(start),
        requires=[library],
        serves=lambda path: path.suffix == ".toy",
    )
    path = tmp_path / "models" / "a.toy"
    models = [{"name": path.name, "backend": "toys", "path": str(path)}] if configured else []
    config = Config.model_validate({"server": {"model_dir": str(path.parent)}, "models": models})
    body = {"model": "a.toy", "messages": [{"role": "user", "content": "x"}]}
    with serve(config, plugins) as server:
        [card] = server.http.get("/v1/models").json()["data"]
        assert (card["id"], card["state"]) == ("a.toy", "failed" if configured else "unloaded")
        for _ in range(2):
            refused = server.http.post("/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert "python3 start.py install toys" in refused.json()["error"]["message"]
        (tmp_path / f"{library}.py").touch()
        assert "here it is" in server.http.post("/v1/chat/completions", json=body).text
