"""REAL-12: `enginebay config check` on a machine without a backend's library."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from enginebay.contract import registers
from tests.cli.conftest import Run

CONFIG = """
models:
  - {{name: first, backend: {backend}, path: .}}
  - {{name: second, backend: {backend}, path: .}}
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, clean_place: None) -> set[str]:
    """Names of libraries that this machine then seems to lack."""
    names: set[str] = set()
    found = lambda name: None if name in names else find_spec(name)  # noqa: E731
    monkeypatch.setattr(registers, "find_spec", found)
    return names


@pytest.mark.parametrize(
    ("backend", "library"),
    [("llamacpp", "llama_cpp"), ("hf", "torch"), ("exllamav2", "exllamav2_ext")],
)
def test_a_backend_whose_library_is_missing(
    run: Run, without: set[str], backend: str, library: str
) -> None:
    Path("config.yml").write_text(CONFIG.format(backend=backend), encoding="utf-8")
    without.add(library)
    result = run("config", "check")
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert said.count(f"the backend {backend} needs {library}, which is not installed") == 1
    assert f"install it with: python3 start.py install {backend}" in said
    assert f"pip install 'enginebay[{backend}]'" in said
    assert "is valid" not in result.stdout


def test_a_model_of_the_folder_is_a_warning(run: Run, without: set[str]) -> None:
    Path("models").mkdir()
    Path("models/small.gguf").write_bytes(b"GGUF")
    Path("config.yml").write_text("{}", encoding="utf-8")
    assert "warning" not in run("config", "check").stderr
    without.add("llama_cpp")
    result = run("config", "check")
    assert result.exit_code == 0
    assert "is valid" in result.stdout
    said = " ".join(result.stderr.split())
    assert "models: the backend llamacpp needs llama_cpp, which is not installed" in said


def test_a_model_in_a_cluster_has_its_library_there(run: Run, without: set[str]) -> None:
    config = "cluster: {}\nmodels:\n  - {name: m, backend: llamacpp, path: /m.gguf, cluster: {}}\n"
    Path("config.yml").write_text(config, encoding="utf-8")
    without.add("llama_cpp")
    result = run("config", "check")
    assert "not installed" not in result.stderr
    assert result.exit_code == 0, result.stderr


def test_a_library_that_is_there_but_does_not_import(
    run: Run, clean_place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVE-3: "valid" would be wrong, since no model could be loaded.
    Path("plugins").mkdir()
    register = 'register("{0}", lambda settings: None, requires=["{1}"])'
    hooks = [register.format("whole", "json"), register.format("torn", "torn_library")]
    Path("plugins/mine.py").write_text(
        "from enginebay import hookimpl\n\n\n@hookimpl\ndef register_backends(register):\n"
        + "".join(f"    {hook}\n" for hook in hooks),
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(Path.cwd())
    Path("torn_library.py").write_text("import no_such_part", encoding="utf-8")
    Path("config.yml").write_text(
        "models:\n  - {name: a, backend: whole, path: .}\n  - {name: b, backend: torn, path: .}\n",
        encoding="utf-8",
    )
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    said = "the backend torn cannot run: torn_library does not import (ModuleNotFoundError: No "
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
