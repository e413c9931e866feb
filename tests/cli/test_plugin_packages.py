"""`plugins add` and `plugins remove`, in an environment of its own, without a network."""

import os
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from enginebay.cli.environment import own_requirements
from tests.cli.conftest import Run
from tests.outsider import Outsider

Add = Callable[..., "CompletedProcess[str]"]

WORKS = """
from enginebay import EngineBackend, hookimpl
from enginebay.testing import ScriptedEngine

@hookimpl
def register_backends(register):
    register("toy", lambda settings: EngineBackend(lambda: ScriptedEngine(["Hi"])))

@hookimpl(wrapper=True)
def generate(backend, request):
    return (yield)
"""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}


def wheel(
    folder: Path,
    name: str = "enginebay-toy",
    code: str = WORKS,
    *,
    requires: tuple[str, ...] = (),
    python: str = ">=3.11",
    version: str = "1.0",
    is_plugin: bool = True,
) -> Path:
    """A wheel with one module, as a build backend would write it."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{module}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Requires-Python: {python}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if is_plugin:
        files[f"{info}/entry_points.txt"] = f"[enginebay]\n{name.split('-')[-1]} = {module}\n"
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(each, text)
    return path


@pytest.fixture
def add(outsider: Outsider, tmp_path: Path) -> Iterator[Add]:
    """`add("PATH", ...)` runs `enginebay plugins add`; what is installed does not stay."""
    (tmp_path / "config.yml").write_text("plugins: {blocked: [backends]}\n", encoding="utf-8")
    before = set(outsider.packages.glob("*.dist-info"))
    yield lambda *what, **variables: outsider.run(
        "enginebay", "plugins", "add", *what, cwd=tmp_path, **(OFFLINE | variables)
    )
    new = {path.name.partition("-")[0] for path in outsider.packages.glob("*.dist-info")}
    left = new - {path.name.partition("-")[0] for path in before}
    if left:
        outsider.run("python", "-m", "pip", "uninstall", "--yes", *left, cwd=tmp_path)


@pytest.fixture
def plugins(outsider: Outsider, tmp_path: Path) -> Add:
    """`plugins("list")` runs `enginebay plugins list`."""
    return lambda *what, **more: outsider.run("enginebay", "plugins", *what, cwd=tmp_path, **more)


def row(listed: "CompletedProcess[str]", name: str) -> list[str]:
    rows = [line.split() for line in listed.stdout.splitlines()]
    return next((words for words in rows if words[:1] == [name]), [])


def test_a_wheel_is_installed_shown_listed_and_removed(
    add: Add, plugins: Add, tmp_path: Path
) -> None:
    added = add(str(wheel(tmp_path)))
    assert added.returncode == 0, added.stderr
    assert added.stdout == "plugin toy 1.0: ok; backends toy; hooks generate\n"
    assert "pip installs" in added.stderr
    assert "Successfully installed enginebay-toy-1.0" in added.stderr
    assert "after a restart" in added.stderr
    shown = ["toy", "1.0", "entry", "point", "of", "enginebay-toy", "ok"]
    assert row(plugins("list"), "toy")[:7] == shown
    again = add(str(tmp_path / "enginebay_toy-1.0-py3-none-any.whl"))
    assert again.stdout == added.stdout
    refused = plugins("remove", "toy")
    assert "Uninstall enginebay-toy 1.0 with its plugins (toy)?" in refused.stderr
    assert refused.returncode == 1
    removed = plugins("remove", "Enginebay_Toy", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout == "enginebay-toy was uninstalled; its libraries stay\n"
    assert row(plugins("list"), "toy") == []
    gone = plugins("remove", "toy", "--yes")
    assert gone.stderr.startswith("there is no plugin toy; these can be removed: ")
    assert "toy" not in gone.stderr.partition("removed: ")[2]


def test_an_upgrade_and_a_name(add: Add, tmp_path: Path) -> None:
    places = {"PIP_FIND_LINKS": str(tmp_path)}
    wheel(tmp_path, requires=("enginebay-toy-library",))
    wheel(tmp_path, "enginebay-toy-library", "", is_plugin=False)
    first = add("enginebay-toy", **places)
    assert first.stdout.startswith("plugin toy 1.0: ok"), first.stderr
    wheel(tmp_path, version="1.1")
    second = add("Enginebay.Toy>=1", **places)
    assert second.stdout.startswith("plugin toy 1.1: ok"), second.stderr
    nothing = add("enginebay-unknown", **places)
    assert nothing.returncode == 1
    assert "enginebay-unknown does not exist where packages are looked for" in nothing.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mark", "note"),
    [
        ("uv-receipt.toml", "`uv tool install enginebay --with enginebay-toy` keeps it"),
        ("pipx_metadata.json", "`pipx inject enginebay enginebay-toy` keeps it"),
    ],
)
def test_tools_that_own_the_environment_are_told_of_it(
    add: Add, outsider: Outsider, tmp_path: Path, mark: str, note: str
) -> None:
    file = outsider.prefix / mark
    file.touch()
    try:
        assert note in add(str(wheel(tmp_path))).stderr
    finally:
        file.unlink()


def test_a_url(add: Add, tmp_path: Path) -> None:
    name = wheel(tmp_path).name
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            added = add(f"{url}/{name}")
            missing = add(f"{url}/none-1.0-py3-none-any.whl")
        finally:
            server.shutdown()
    assert added.stdout.startswith("plugin toy 1.0: ok"), added.stderr
    assert missing.returncode == 1
    assert "Nothing was installed" in missing.stderr


def test_the_folder_of_an_author(add: Add, plugins: Add, tmp_path: Path) -> None:
    assert plugins("new", "mine").returncode == 0
    with (tmp_path / "enginebay-mine/pyproject.toml").open("a", encoding="utf-8") as project:
        project.write('\n[tool.hatch.build]\ndev-mode-dirs = ["."]\n')  # needs no other package
    added = add("--editable", "./enginebay-mine[test]")
    assert added.stdout == "plugin mine 0.1.0: ok; backends mine\n", added.stderr
    source = tmp_path / "enginebay-mine/enginebay_mine/__init__.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('register("mine"', 'register("yours"'), encoding="utf-8")
    assert row(plugins("list"), "mine")[-2:] == ["backends", "yours"]
    assert add(str(tmp_path)).stderr.startswith(f"{tmp_path} is no Python package: it has no pypro")


def test_the_libraries_of_enginebay_stay(add: Add, outsider: Outsider, tmp_path: Path) -> None:
    older = wheel(tmp_path, "typer", "", version="0.0.1", is_plugin=False)
    added = add(str(wheel(tmp_path, requires=("typer<0.1",))), PIP_FIND_LINKS=str(tmp_path))
    assert added.returncode == 1
    assert "needs other versions of libraries than this Enginebay runs with" in added.stderr
    assert "Nothing was installed" in added.stderr
    assert add("typer").stderr == "typer is a part of Enginebay, and no plugin\n"
    assert older.exists()
    assert not list(outsider.packages.glob("typer*"))
    assert not list(outsider.packages.glob("enginebay_toy*"))


def test_what_is_fixed_are_the_requirements_and_theirs() -> None:
    fixed = own_requirements()
    assert {"enginebay", "typer", "packaging", "starlette", "llguidance"} <= fixed.keys()
    assert all(fixed.values())


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"requires": ("enginebay>=99",)}, "needs another version of Enginebay, and this is 0."),
        ({"python": ">=3.99"}, "needs another version of Python, and this is 3."),
    ],
)
def test_what_does_not_fit(add: Add, tmp_path: Path, how: dict[str, str], reason: str) -> None:
    added = add(str(wheel(tmp_path, **how)))  # type: ignore[arg-type]
    assert added.returncode == 1
    assert reason in added.stderr


def test_what_is_no_plugin_is_removed_again(add: Add, outsider: Outsider, tmp_path: Path) -> None:
    other = str(wheel(tmp_path, "some-library", "", is_plugin=False))
    kept = add(other)
    assert kept.returncode == 1
    assert "some-library is no plugin of Enginebay: it has no entry point" in kept.stderr
    assert "some-library: still installed" in kept.stderr
    outsider.run("python", "-m", "pip", "uninstall", "--yes", "some-library", cwd=tmp_path)
    assert "some-library: uninstalled again" in add(other, "--yes").stderr
    assert not list(outsider.packages.glob("some_library*"))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(7)", "its import ends the process with exit code 7"),
    ],
)
def test_a_plugin_that_does_not_work(add: Add, tmp_path: Path, code: str, reason: str) -> None:
    added = add(str(wheel(tmp_path, code=code)), "--yes")
    assert (added.returncode, added.stdout) == (1, "")
    assert f"plugin toy 1.0: {'' if '_exit' in code else 'left out; '}{reason}" in added.stderr
    assert "enginebay-toy: uninstalled again" in added.stderr


@pytest.mark.thorough
def test_without_a_network(add: Add) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1", "PIP_NO_INDEX": "0"}
    added = add("enginebay-toy", **nowhere)
    assert added.returncode == 1
    assert "needs a download, and the address cannot be reached" in added.stderr


UV = """#!{python}
import os, subprocess, sys
os.environ["STANDS_FOR_UV"] = ""
with open({calls!r}, "a") as calls:
    print(*sys.argv[1:], file=calls)
command, *rest = sys.argv[2:]
at = rest.index("--python")
python = rest[at + 1]
del rest[at : at + 2]
yes = ["--yes"] if command == "uninstall" else []
sys.exit(subprocess.call([{python!r}, "-m", "pip", "--python", python, command, *yes, *rest]))
"""


@pytest.mark.skipif(os.name == "nt", reason="the program that stands for uv is a script")
def test_uv_installs_where_there_is_no_pip(
    add: Add, plugins: Add, outsider: Outsider, tmp_path: Path
) -> None:
    hidden = outsider.packages / "without_pip.pth"
    hide = "import os, sys; 'STANDS_FOR_UV' in os.environ or sys.modules.update(pip=None)\n"
    hidden.write_text(hide, encoding="utf-8")
    path, calls = tmp_path / "bin", tmp_path / "calls"
    path.mkdir()
    try:
        nothing = add(str(wheel(tmp_path)), PATH=str(path))
        assert nothing.returncode == 1
        assert "there is neither pip in" in nothing.stderr
        assert "-m ensurepip" in nothing.stderr
        (path / "uv").write_text(UV.format(python=sys.executable, calls=str(calls)))
        (path / "uv").chmod(0o755)
        added = add(str(tmp_path / "enginebay_toy-1.0-py3-none-any.whl"), PATH=str(path))
        assert added.stdout.startswith("plugin toy 1.0: ok"), added.stderr
        assert "uv installs" in added.stderr
        removed = plugins("remove", "toy", "--yes", PATH=str(path))
        assert removed.returncode == 0, removed.stderr
    finally:
        hidden.unlink()
    installs, removes = calls.read_text(encoding="utf-8").splitlines()
    assert installs.startswith("pip install --upgrade --python ")
    assert "--constraint" in installs
    assert removes.startswith("pip uninstall --python ")
    assert removes.endswith(" enginebay-toy")


def test_an_environment_that_may_not_be_changed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written by this user" in run("plugins", "add", "enginebay-toy").stderr
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    refused = run("plugins", "add", "enginebay-toy")
    assert refused.exit_code == 1
    assert "belongs to the operating system" in refused.stderr
    assert "(PEP 668)" in refused.stderr


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("./nothing", "there is no file or folder nothing"),
        ("nothing.whl", "there is no file or folder nothing.whl"),
        ("a b", "'a b' is not a package, a path or a URL"),
        ("enginebay", "enginebay is a part of Enginebay, and no plugin"),
        ("http://x/y.py", "http://x/y.py is a single file: download it, and add it by its path"),
    ],
)
def test_what_cannot_be_added(run: Run, what: str, message: str) -> None:
    refused = run("plugins", "add", what)
    assert (refused.exit_code, refused.stderr) == (2, f"{message}\n")
    assert run("plugins", "add", "--", "-r file").exit_code == 2
    assert "--editable needs a folder" in run("plugins", "add", "-e", "enginebay-toy").stderr


def test_a_file_is_copied_and_deleted(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / "toy.py"
    source.parent.mkdir()
    source.write_text(WORKS, encoding="utf-8")
    added = run("plugins", "add", str(source))
    assert added.exit_code == 0, added.stderr
    assert added.stdout == "plugin toy: ok; backends toy; hooks generate\n"
    target = Path("plugins/toy.py").absolute()
    assert target.read_text(encoding="utf-8") == WORKS
    assert "with the same content" in run("plugins", "add", str(source)).stderr
    source.write_text("other")
    different = run("plugins", "add", str(source))
    assert "remove it first: enginebay plugins remove toy.py" in different.stderr
    assert run("plugins", "remove", "toy", input="n\n").exit_code == 1
    assert target.exists()
    assert run("plugins", "remove", "toy.py", input="y\n").exit_code == 0
    assert not target.exists()
    broken = run("plugins", "add", str(source))
    assert broken.exit_code == 1
    assert "NameError: name 'other' is not defined (toy.py, line 1)" in broken.stderr
    assert "was removed again" in broken.stderr
    assert not list(target.parent.glob("*.py"))
    hidden = source.rename(source.with_name("_toy.py"))
    assert "begins with an underscore" in run("plugins", "add", str(hidden)).stderr


@pytest.mark.parametrize("name", ["hf", "parsers"])
def test_built_in_plugins_stay(run: Run, name: str) -> None:
    refused = run("plugins", "remove", name, "--yes")
    assert refused.exit_code == 1
    assert f"{name} is a part of Enginebay and cannot be removed" in refused.stderr
    assert f"plugins: {{blocked: [{name}]}}" in refused.stderr
    assert "enginebay is the server itself" in run("plugins", "remove", "Enginebay", "--yes").stderr
