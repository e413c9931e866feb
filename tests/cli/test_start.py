"""`start.py` with a small project in Enginebay's place, installed for real, without a network."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import REPOSITORY

PYPROJECT = """
[build-system]
requires = []
build-backend = "builder"
backend-path = ["."]

[project]
name = "enginebay"
version = "1.0"
"""

BUILDER = '''
"""Builds a wheel of one module, which stands in for enginebay and pytest."""
import zipfile
from pathlib import Path

EXTRAS = ("hf", "llamacpp", "test")
MODULE = """
import json, os, sys
def main():
    print(json.dumps([sys.argv[1:], os.environ.get("ENGINEBAY_CONFIG")]))
    sys.exit(7)
if __name__ == "__main__":
    main()
"""


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    if Path("broken").exists():
        raise SystemExit("the builder is broken")
    name = "enginebay-1.0-py3-none-any.whl"
    info = "enginebay-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\\nName: enginebay\\nVersion: 1.0\\n"
    files = {
        "said.py": MODULE,
        "pytest.py": MODULE,
        f"{info}/METADATA": metadata + "".join(f"Provides-Extra: {e}\\n" for e in EXTRAS),
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\nenginebay = said:main\\n",
    }
    record = "".join(f"{file},,\\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)
    return name
'''

Result = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a checkout")
    shutil.copy(REPOSITORY / "start.py", folder)
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (folder / "builder.py").write_text(BUILDER, encoding="utf-8")
    return folder


def start(project: Path, *arguments: str, cwd: Path | None = None) -> Result:
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "ENGINEBAY_", "COV_"))}
    return subprocess.run(
        [sys.executable, str(project / "start.py"), *arguments],
        cwd=cwd or project,
        env={**ours, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def said(result: Result) -> list[object]:
    """What the stand-in was called with."""
    last: list[object] = json.loads(result.stdout.splitlines()[-1])
    return last


def test_from_nothing_to_running_and_again(project: Path, tmp_path: Path) -> None:
    stamp = project / ".venv" / "enginebay-installed.json"
    broken = project / "broken"

    broken.touch()
    result = start(project)
    assert result.returncode == 1
    assert "the builder is broken" in result.stdout
    assert "pip could not install Enginebay" in result.stderr
    assert not stamp.exists()

    broken.unlink()
    result = start(project)
    assert result.returncode == 7, result.stdout + result.stderr
    assert said(result) == [["serve"], None]
    assert "Installing Enginebay [hf]" in result.stdout
    assert "Creating" not in result.stdout  # the environment was there already

    result = start(project, "serve", "--port", "9000")
    assert said(result) == [["serve", "--port", "9000"], None]
    assert "Installing" not in result.stdout

    assert said(start(project, "--port", "1")) == [["serve", "--port", "1"], None]
    assert said(start(project, "--version"))[0] == ["--version"]

    result = start(project, "install", "llamacpp")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Installing Enginebay [hf, llamacpp]" in result.stdout
    assert "Name a backend to install" in start(project, "install").stderr

    # from elsewhere: the checkout's config, paths of arguments as they are meant there
    result = start(project, "chat", cwd=tmp_path)
    assert said(result) == [["chat"], str(project / "config.yml")]

    result = start(project, "test", "-k", "x")
    assert result.returncode == 7
    assert said(result)[0] == ["-k", "x"]
    assert "Installing Enginebay [hf, llamacpp, test]" in result.stdout

    assert said(start(project, "test", "--thorough"))[0][-1] == "--thorough"
    assert said(start(project, "test"))[0][0] == "-n"  # the whole suite, in several processes

    assert "Installing" not in start(project).stdout  # what tests need has all

    script = project / "hello.py"
    script.write_text("import said, sys; print(sys.argv[1:])", encoding="utf-8")
    result = start(project, "python", "hello.py", "a")
    assert (result.returncode, result.stdout) == (0, "['a']\n")

    pyproject = project / "pyproject.toml"
    pyproject.write_text(PYPROJECT + 'description = "changed"\n', encoding="utf-8")
    broken.touch()
    assert start(project).returncode == 1
    assert not stamp.exists()
    broken.unlink()
    result = start(project, "run", "owner/repo")  # whose engine is not known yet
    assert said(result) == [["run", "owner/repo"], None]
    assert f"Installing Enginebay into {project / '.venv'}" in result.stdout
    assert "Installing" not in start(project, "run", "owner/repo").stdout
    assert "Installing Enginebay [hf]" in start(project).stdout
    assert "Installing" not in start(project, "run", "owner/repo").stdout


def test_gguf_files_in_the_models_folder(project: Path) -> None:
    # MOD-1: what they need is installed, too; if it cannot be, the rest goes on without it
    stamp = project / ".venv" / "enginebay-installed.json"
    broken = project / "broken"
    (project / "pyproject.toml").write_text(PYPROJECT + 'description = "other"\n', encoding="utf-8")
    assert "Installing Enginebay [hf] " in start(project).stdout
    (project / "elsewhere" / "owner").mkdir(parents=True)
    (project / "elsewhere" / "owner" / "m.gguf").touch()
    (project / "config.yml").write_text(
        "server:\n  port: 1\n  model_dir: elsewhere  # for GGUF files\n", encoding="utf-8"
    )
    broken.touch()
    result = start(project)
    assert result.returncode == 7
    assert "Going on without llamacpp; python3" in result.stdout
    assert "Installing" not in start(project).stdout
    broken.unlink()
    assert "Installing Enginebay [hf, llamacpp]" in start(project, "install", "llamacpp").stdout
    assert json.loads(stamp.read_text(encoding="utf-8"))["failed"] == []
    (project / "pyproject.toml").write_text(PYPROJECT + 'description = "third"\n', encoding="utf-8")
    result = start(project)
    assert "Installing Enginebay [hf, llamacpp]" in result.stdout
    assert said(result) == [["serve"], None]


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("", [], "models"),
        ("server:\n  model_dir: 'my models' # x\n", [], "my models"),
        ('server:\n  model_dir: "/srv/m"\n', ["--port", "1"], "/srv/m"),
        ("server:\n  #model_dir: no\n", [], "models"),
        ("server:\n  model_dir: no\n", ["--config=other.yml"], "models"),
        ("server:\n  model_dir: no\n", ["--config", "sub/other.yml"], "sub/models"),
    ],
)
def test_where_the_models_folder_is(
    module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    arguments: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    (tmp_path / "config.yml").write_text(text, encoding="utf-8")
    assert module.model_dir(arguments) == tmp_path / expected


@pytest.fixture
def module() -> ModuleType:
    """`start.py` as a module."""
    spec = importlib.util.spec_from_file_location("start", REPOSITORY / "start.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_python_that_is_too_old(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module.require_python((3, 11))
    monkeypatch.setattr(module, "is_command", lambda name: name == "python3.12")
    with pytest.raises(SystemExit) as caught:
        module.require_python((3, 10))
    assert str(caught.value) == (
        "Enginebay needs Python 3.11 or newer; this is Python 3.10.\n"
        "This machine has a newer one: python3.12 start.py"
    )


@pytest.mark.parametrize(
    ("platform", "way"),
    [("linux", "sudo apt install"), ("darwin", "brew install"), ("win32", "winget install")],
)
def test_how_to_get_a_newer_one(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, platform: str, way: str
) -> None:
    monkeypatch.setattr(module, "is_command", lambda name: False)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SystemExit, match=way):
        module.require_python((3, 9))


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_debian_without_venv(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(SystemExit, match=r"sudo apt install python3\.\d+-venv"):
        module.make_venv()


def test_help(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--help"]) == 0
    assert "python3 start.py test" in capsys.readouterr().out
