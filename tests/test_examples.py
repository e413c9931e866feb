"""The packages under `examples/`, tested as strangers get them: installed beside Enginebay."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.outsider import EXAMPLES, ROOTS, Outsider, entry_points
from tests.support import REPOSITORY

OURS = {
    "benchmarks",
    "demo",
    "enginebay",
    *(folder.name for root in ROOTS for folder in (REPOSITORY / root).iterdir()),
}

example = pytest.mark.parametrize("package", EXAMPLES, ids=lambda package: package.name)


def imports(folder: Path) -> Iterator[str]:
    files = list(folder.rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""


def of_ours(modules: Iterator[str]) -> set[str]:
    return {module for module in modules if module.partition(".")[0] in OURS}


def test_enginebay_itself_is_the_installed_one(outsider: Outsider, tmp_path: Path) -> None:
    code = (
        "import enginebay, enginebay_hf, enginebay_parsers as p; print(enginebay, enginebay_hf, p)"
    )
    assert (
        outsider.run("python", "-c", code, cwd=tmp_path).stdout.count(str(outsider.packages)) == 3
    )
    gone = outsider.run("python", "-c", "import core", cwd=tmp_path)
    assert "No module named 'core'" in gone.stderr


def test_the_wheel_adds_these_names_and_has_the_templates(
    outsider: Outsider, tmp_path: Path
) -> None:
    [record] = outsider.packages.glob("enginebay-*.dist-info/RECORD")
    paths = [Path(line.split(",")[0]) for line in record.read_text(encoding="utf-8").splitlines()]
    names = {path.parts[0] for path in paths} - {"..", record.parent.name, "__pycache__"}
    assert all(name.split("_")[0] == "enginebay" for name in names), names
    assert "py.typed" in {path.name for path in paths}
    code = (
        "from pathlib import Path\n"
        "from enginebay.models.template.template import template_path as find\n"
    )
    printed = outsider.run("python", "-c", f"{code}print(find('chatml', Path()))", cwd=tmp_path)
    assert Path(printed.stdout.strip()) == outsider.packages / "enginebay/templates/chatml.jinja"


@example
def test_it_is_a_plugin(outsider: Outsider, package: Path, tmp_path: Path) -> None:
    outsider.install(package)
    (tmp_path / "config.yml").write_text("plugins: {blocked: [backends]}")  # slow imports
    for name, module in entry_points(package).items():
        code = f"import {module} as plugin; print(plugin.__file__)"
        file = outsider.run("python", "-c", code, cwd=tmp_path).stdout.strip()
        assert Path(file).is_relative_to(outsider.packages)
        listed = outsider.run("enginebay", "plugins", "list", cwd=tmp_path).stdout.splitlines()
        [line] = [line for line in listed if f"entry point of {package.name} " in line]
        words = line.split()
        assert words[0] == name
        state, kind = words[words.index(package.name) + 1 :][:2]
        assert (state, kind in ("backends", "routes")) == ("ok", True), line


@example
def test_it_imports_nothing_but_the_public_face(outsider: Outsider, package: Path) -> None:
    """Of our code, that is; its tests have `enginebay.testing` beside it."""
    outsider.install(package)
    for module in entry_points(package).values():
        assert of_ours(imports(outsider.packages / module)) == {"enginebay"}
    tests = of_ours(imports(package / "tests")) - {"enginebay"}
    assert all(module.startswith("enginebay.testing") for module in tests), tests


@pytest.mark.thorough
@example
def test_its_own_tests_pass(outsider: Outsider, package: Path) -> None:
    """Where they are, with the installed package: -P keeps the folder's own out of the path."""
    outsider.install(package)
    command = ("python", "-P", "-m", "pytest", "-p", "no:cacheprovider", "--durations=5")
    tested = outsider.run(*command, cwd=package)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_new_plugin_works_where_it_is_installed(outsider: Outsider, tmp_path: Path) -> None:
    """The way of plugin authors: `plugins new`, pip, the tests, a server."""
    made = outsider.run("enginebay", "plugins", "new", "just-made", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    package = tmp_path / "enginebay-just-made"
    outsider.install(package)
    module = outsider.packages / entry_points(package)["just-made"]
    assert of_ours(imports(module)) == {"enginebay"}
    tested = outsider.run(
        "python", "-P", "-Werror", "-m", "pytest", "-p", "no:asyncio", cwd=package
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
    config = (package / "config.yml").read_text(encoding="utf-8")
    with (
        outsider.serve(package, config) as url,
        OpenAI(base_url=f"{url}/v1", api_key="k") as client,
    ):
        answer = client.completions.create(model="just-made", prompt="The", max_tokens=20)
    assert answer.usage
    assert answer.usage.completion_tokens > 0
