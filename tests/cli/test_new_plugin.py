"""The package that `enginebay plugins new` writes works as it is.

Its own tests are run in `tests/test_examples.py`, where it is installed by pip.
"""

import sys
import tomllib
from pathlib import Path

import pytest

from enginebay.cli.new_plugin import SKELETON
from enginebay.config.load import load_config
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from tests.cli.conftest import Run
from tests.support import serve

PACKAGE = Path("enginebay-my-engine")


@pytest.fixture
def package(run: Run) -> Path:
    """A package as it was written, in the current folder."""
    result = run("plugins", "new", "my-engine")
    assert (result.exit_code, result.stderr) == (0, "")
    return PACKAGE


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same where Python finds it, with the metadata that pip writes of its pyproject.toml."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = package / "enginebay_my_engine-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n",
        encoding="utf-8",
    )
    [(name, module)] = project["entry-points"]["enginebay"].items()
    (metadata / "entry_points.txt").write_text(f"[enginebay]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(str(package.absolute()))
    for module in ("enginebay_my_engine", "enginebay_my_engine.engine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return package


def test_the_package_is_complete(package: Path) -> None:
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert files == {
        "README.md",
        "config.yml",
        "enginebay_my_engine/__init__.py",
        "enginebay_my_engine/engine.py",
        "pyproject.toml",
        "tests/test_backend.py",
    }
    assert len(files) == len(list(SKELETON.rglob("*.template")))
    for file in files:
        text = (package / file).read_text(encoding="utf-8")
        assert "$" not in text, file
    readme = (package / "README.md").read_text(encoding="utf-8")
    assert all(file in readme for file in files if file.startswith(("enginebay", "config", "py")))


def test_it_serves_with_its_own_config(installed: Path) -> None:
    config, plugins = load_config(installed / "config.yml"), Plugins()
    assert check_config(config, plugins) == []
    question = [{"role": "user", "content": "What does the backend do? "}]
    with serve(config, plugins) as server:

        def ask(**params: object) -> str:
            answer = server.openai.chat.completions.create(
                model="my-engine", messages=question, max_tokens=40, **params
            )
            return answer.choices[0].message.content or ""

        assert server.openai.models.list().data[0].id == "my-engine"
        assert ask(temperature=0) == ask(temperature=0)
        assert ask(seed=1) == ask(seed=1)
        assert len({ask(seed=seed) for seed in range(5)}) > 1
        stream = server.openai.completions.create(
            model="my-engine", prompt="The", temperature=0, max_tokens=20, stream=True
        )
        assert len("".join(chunk.choices[0].text for chunk in stream)) > 10


@pytest.mark.usefixtures("installed")
def test_it_is_listed_with_its_distribution(run: Run) -> None:
    Path("config.yml").write_text("plugins: {blocked: [backends]}", encoding="utf-8")
    lines = [line.split() for line in run("plugins", "list").stdout.splitlines()]
    found = next(line for line in lines if line[:1] == ["my-engine"])
    source = ["entry", "point", "of", "enginebay-my-engine"]
    assert found == ["my-engine", "0.1.0", *source, "ok", "backends", "my-engine"]
    assert ["my-engine", "order"] in lines


def test_a_wrong_option_is_refused(installed: Path) -> None:
    file = installed / "config.yml"
    text = file.read_text(encoding="utf-8").replace("#options: {order: 6}", "options: {order: 0}")
    file.write_text(text, encoding="utf-8")
    [problem] = check_config(load_config(file), Plugins())
    assert "models[0].options.order: must be greater than or equal to 1" in str(problem)


def test_what_is_there_is_never_touched(run: Run) -> None:
    PACKAGE.mkdir()
    (PACKAGE / "pyproject.toml").write_text("mine", encoding="utf-8")
    result = run("plugins", "new", "my-engine")
    assert result.exit_code == 1
    assert result.stderr == f"{PACKAGE} already exists; nothing was written\n"
    assert [path.name for path in PACKAGE.iterdir()] == ["pyproject.toml"]
    assert (PACKAGE / "pyproject.toml").read_text(encoding="utf-8") == "mine"


def test_the_folder_to_write_into(run: Run, tmp_path: Path) -> None:
    assert "No such file" in run("plugins", "new", "mine", "--into", "nowhere").stderr
    (tmp_path / "there").mkdir()
    assert run("plugins", "new", "my_engine", "--into", "there").exit_code == 0
    assert (tmp_path / "there" / PACKAGE / "enginebay_my_engine" / "engine.py").exists()


@pytest.mark.parametrize(
    "name", ["", "Mine", "1st", "a b", "a--b", "-a", "a-", "../a", "a/b", 'a"', "é", "a" * 51]
)
def test_names_that_cannot_be(run: Run, name: str) -> None:
    result = run("plugins", "new", "--", name)
    assert result.exit_code == 2
    assert "cannot be the name of a backend" in result.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", ["hf", "llamacpp", "parsers", "cluster"])
def test_names_that_are_taken(run: Run, name: str) -> None:
    result = run("plugins", "new", name)
    assert (result.exit_code, list(Path().iterdir())) == (2, [])
    assert "already exists; choose another name" in result.stderr
