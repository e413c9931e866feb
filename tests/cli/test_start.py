"""`start.py` with a small project in Enginebay's place, installed for real, without a network; and
`enginebay serve` with a small installer in the place of `start.py`.
"""

import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

import command_launcher
from tests.cli.conftest import StartServing
from tests.cli.llama_cpp_wheel import write_wheel
from tests.support import REPOSITORY

PYPROJECT = """
[build-system]
requires = []
build-backend = "builder"
backend-path = ["."]

[project]
name = "enginebay"
version = "1.0"

[project.optional-dependencies]
test = ["llama-cpp-python==9.9"]
"""

BUILDER = '''
"""Builds a wheel of one module, which stands in for enginebay and pytest."""
import zipfile
from pathlib import Path

EXTRAS = ("conformance", "hf", "llamacpp", "standard", "test")
MODULE = """
import json, os, sys
def main():
    print("started by", os.environ.get("ENGINEBAY_START"))
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
    scripts = ("start.py", "llamacpp_wheels.py", "command_launcher.py")
    for name in (*scripts, "backends/enginebay_llamacpp/bindings.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (folder / "builder.py").write_text(BUILDER, encoding="utf-8")
    write_wheel(folder / "wheels" / "cpu" / "llama-cpp-python")
    return folder


def start(
    project: Path,
    *arguments: str,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Result:
    """Run `start.py` of a project, with only the project's own wheels; `variables` come last."""
    foreign = ("PIP_", "ENGINEBAY_", "COV_", "CMAKE_")
    ours = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    pip = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    pip["PIP_CACHE_DIR"] = str(project / "cache")
    wheels = {"ENGINEBAY_LLAMACPP_WHEELS": (project / "wheels").as_uri()}
    return subprocess.run(
        [sys.executable, str(project / "start.py"), *arguments],
        cwd=cwd or project,
        env={**ours, **pip, **wheels, "ENGINEBAY_LLAMACPP": "cpu", **(variables or {})},
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

    stamp.unlink(missing_ok=True)
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
    assert f"started by {project / 'start.py'}" in result.stdout
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


@pytest.mark.skipif(os.name == "nt", reason="its launcher is another file")
def test_enginebay_is_a_command_of_every_folder(project: Path, tmp_path: Path) -> None:
    # EVE-5: guides write `enginebay`, and with this it works from a checkout as well.
    launcher = tmp_path / ".local" / "bin" / "enginebay"
    home = {"HOME": str(tmp_path), "PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
    result = start(project, "install", "enginebay", variables=home)
    assert result.returncode == 0
    assert result.stdout == f"Wrote {launcher}: `enginebay` is a command now.\n"
    start(project)  # which installs it

    def called(*arguments: str) -> Result:
        found = shutil.which("enginebay", path=home["PATH"])
        assert found == str(launcher)
        pip = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ENGINEBAY_")}
        return subprocess.run(
            [found, *arguments], cwd=tmp_path, env={**ours, **pip}, capture_output=True, text=True
        )

    result = called("models", "list", "a b", "$c")
    assert result.returncode == 7
    assert said(result) == [["models", "list", "a b", "$c"], str(project / "config.yml")]
    assert said(called())[0] == []  # not `serve`: it is the command itself
    assert said(called("test"))[0] == ["test"]
    (tmp_path / "config.yml").touch()
    assert said(called("serve")) == [["serve"], None]

    launcher.write_text("#!/bin/sh\necho other", encoding="utf-8")
    result = start(project, "install", "enginebay", variables=home)
    assert f"{launcher} is another Enginebay's" in result.stdout
    launcher.unlink()
    result = start(project, "install", "enginebay", variables={**home, "PATH": "/usr/bin:/bin"})
    assert f"is a command once {launcher.parent} is in PATH" in result.stdout


@pytest.mark.skipif(os.name == "nt", reason="its launcher is another file")
@pytest.mark.parametrize(("answer", "written"), [("\n", True), ("y\n", True), ("n\n", False)])
def test_the_first_start_on_a_terminal_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, written: bool
) -> None:
    # EVE-5
    terminal = io.StringIO(answer)
    shown = io.StringIO()
    for stream in (terminal, shown):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/.local/bin:/usr/bin:/bin")
    command_launcher.offer(tmp_path / "start.py", tmp_path / ".venv")
    launcher = tmp_path / ".local/bin/enginebay"
    assert f"this writes {launcher}" in shown.getvalue()
    assert launcher.exists() == written
    said_before = shown.getvalue()
    if written:
        command_launcher.offer(tmp_path / "start.py", tmp_path / ".venv")
        assert shown.getvalue() == said_before  # it is there


def test_what_cannot_be_installed(project: Path) -> None:
    """What `serve` asks for: tried once, and again by the command that is said."""
    broken = project / "broken"
    if_possible = ("install", "--if-possible", "hf", "llamacpp")
    (project / "pyproject.toml").write_text(PYPROJECT + 'description = "other"\n', encoding="utf-8")
    assert "Installing Enginebay [hf] " in start(project).stdout
    broken.touch()
    result = start(project, *if_possible)
    assert result.returncode == 0
    assert "Installing Enginebay [hf, llamacpp]" in result.stdout
    assert "the builder is broken" in result.stdout
    going_on = "Going on without llamacpp; python3 start.py install llamacpp tries again.\n"
    assert result.stdout.endswith(going_on)
    assert start(project, *if_possible).stdout == going_on
    assert start(project, "install", "llamacpp").returncode == 1
    assert "Installing" not in start(project).stdout  # what was there still is
    broken.unlink()
    assert start(project, *if_possible).stdout == going_on
    assert "Installing Enginebay [hf, llamacpp]" in start(project, "install", "llamacpp").stdout
    result = start(project, *if_possible)
    assert (result.stdout, result.stderr) == ("", "")
    # an update, after which they are installed again when they are needed
    (project / "pyproject.toml").write_text(PYPROJECT + 'description = "third"\n', encoding="utf-8")
    assert "Installing Enginebay [hf] " in start(project).stdout
    assert "Installing Enginebay [hf, llamacpp]" in start(project, *if_possible).stdout


def test_the_versions_of_the_constraints_are_installed(project: Path) -> None:
    constraints = project / "constraints.txt"
    constraints.write_text("enginebay==2.0\n", encoding="utf-8")
    refused = start(project, "conformance", "URL")
    assert refused.returncode == 1
    assert "No matching distribution found for enginebay" in refused.stdout
    constraints.write_text("enginebay==1.0\n", encoding="utf-8")
    result = start(project, "conformance", "URL")
    assert "Installing Enginebay [conformance]" in result.stdout
    assert said(result)[0] == ["conformance", "URL"]


TOYS = """
from enginebay.testing import ScriptedEngine
from enginebay import BackendUnavailableError, EngineBackend, hookimpl


def create(settings):
    try:
        import toy_llama
    except ImportError as error:
        raise BackendUnavailableError("python3 start.py install llamacpp") from error
    return EngineBackend(lambda: ScriptedEngine(["here it is"]))


@hookimpl
def register_backends(register):
    is_gguf = lambda path: path.suffix == ".gguf"
    register("llamacpp", create, requires=["toy_llama"], serves=is_gguf)
    register("hf", create)
    register("exllamav2", create)
    register("without-an-extra", create, requires=["no_such_library"])
"""
INSTALLER = """
import sys
from pathlib import Path
print("asked to", *sys.argv[1:])
Path("toy_llama.py").touch()
"""
CONFIG = """
server: {port: 0, model_dir: elsewhere}
plugins: {blocked: [backends]}
models:
  - {name: first, backend: exllamav2, path: ., load: command}
  - {name: second, backend: without-an-extra, path: ., load: command}
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.usefixtures("clean_place")
def test_gguf_files_in_the_models_folder(
    start_serving: StartServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MOD-1: `start.py` installs what they need before they are served, and so of the config's
    models; where it is not in use, nothing is installed, and a request says what to do.
    """
    Path("plugins").mkdir()
    Path("plugins/toys.py").write_text(TOYS, encoding="utf-8")
    Path("elsewhere/owner").mkdir(parents=True)
    Path("elsewhere/owner/m.gguf").touch()
    Path("elsewhere/other.gguf").touch()
    Path("elsewhere/other.yml").write_text("backend: no-such", encoding="utf-8")
    Path("models.d").mkdir()
    other = "{name: other, backend: hf, path: elsewhere/other.gguf, load: command}"
    Path("models.d/other.yml").write_text(other, encoding="utf-8")
    Path("installer.py").write_text(INSTALLER, encoding="utf-8")
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    for installer, answer in ((None, 503), (Path("installer.py").absolute(), 200)):
        if installer:
            monkeypatch.setenv("ENGINEBAY_START", str(installer))
        serving = start_serving()
        lines = serving.lines_until("Model +owner/m")
        asked = [line for line in lines if line.startswith("asked")]
        wanted = "asked to install --if-possible exllamav2 hf llamacpp"
        assert asked == ([wanted] if installer else [])
        url = re.search(r"http://[\d.:]+", "".join(lines))
        assert url
        body = {"model": "owner/m", "prompt": "x"}
        response = httpx2.post(f"{url[0]}/v1/completions", json=body, timeout=60)
        assert response.status_code == answer
        said = "here it is" if installer else "python3 start.py install llamacpp"
        assert said in response.text
        assert serving.interrupt() == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.usefixtures("clean_place")
def test_what_a_cluster_needs(start_serving: StartServing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model in it nothing is connected, so it may be missing here."""
    Path("installer.py").write_text(INSTALLER, encoding="utf-8")
    monkeypatch.setenv("ENGINEBAY_START", str(Path("installer.py").absolute()))
    Path("config.yml").write_text("server: {port: 0}\ncluster: {}", encoding="utf-8")
    serving = start_serving()
    assert "asked to install --if-possible ray" in serving.lines_until("^Model")
    assert serving.interrupt() == 0


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
