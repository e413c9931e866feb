"""The law of wings: the server and the kernel do without each of them. wings.md 2"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.plugins import WINGS, Plugins, name_of
from tests.support import REPOSITORY
from tests.wings.lane import LANE

KERNEL = REPOSITORY / "core" / "enginebay"
WORDS = re.compile(r"kobold|ollama|cluster|\bray\b|ray_", re.IGNORECASE)
MAY_USE = {("enginebay_cluster", "enginebay_responses")}
"""The cluster shares the store of answers, if there is one."""

wing = pytest.mark.parametrize("package", WINGS)

ASKS = """
import json, logging, sys
sys.modules[{package!r}] = None
from enginebay.config.wing_sections import whole_config
from tests.support import plugins_with, scripted, serve
entry = {{"name": "scripted", "backend": "scripted", "path": "."}}
config = whole_config().model_validate({{"models": [entry]}})
plugins = plugins_with(scripted=scripted(["Hello"]))
with serve(config, plugins) as server:
    body = {{"model": "scripted", "messages": [{{"role": "user", "content": "Hi"}}]}}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    found = {{
        "said": answer["choices"][0]["message"]["content"],
        "models": [model["id"] for model in server.http.get("/v1/models").json()["data"]],
        "health": server.http.get("/health").status_code,
        "openapi": server.http.get("/openapi.json").status_code,
        "info": server.http.get("/.well-known/serviceinfo").status_code,
        "wings": [wing.name for wing in plugins.wings.values()],
        "modules": [name for name in sys.modules if name.split(".")[0] == {package!r}],
    }}
print(json.dumps(found))
"""


@wing
def test_the_server_does_without_it(package: str) -> None:
    code = ASKS.format(package=package)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["said"] == "Hello"
    assert found["models"] == ["scripted"]
    assert found["health"] == found["openapi"] == found["info"] == 200
    assert name_of(package) not in found["wings"]
    assert found["modules"] == [package]  # which stands for "cannot be imported"


@pytest.mark.thorough
@wing
def test_the_lane_of_the_kernel_passes_without_it(package: str) -> None:
    command = [sys.executable, "-m", "pytest", "--without", name_of(package), *LANE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout[-5000:]


def test_all_of_them_are_there() -> None:
    """Else the tests above would show nothing."""
    assert set(Plugins().wings) == {name_of(package) for package in WINGS}


@wing
def test_its_section_asks_for_its_package(package: str, tmp_path: Path) -> None:
    name = name_of(package)
    (tmp_path / "config.yml").write_text(f"{name}: {{}}\n", encoding="utf-8")
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from enginebay.cli import main; sys.argv = ['enginebay', 'config', 'check']; main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    said = " ".join((done.stdout + done.stderr).split())
    assert f"the section `{name}` needs the package {package}, which is not installed" in said
    assert "Traceback" not in said


def named_wings(root: Path) -> Iterator[str]:
    """The places in the kernel that name a wing; its list of them may."""
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.name == "plugins.py" and file.parent.name == "enginebay":
            text = re.sub(r"^WINGS = \(.*?^\)", "", text, flags=re.DOTALL | re.MULTILINE)
        for found in WORDS.finditer(text):
            yield f"{file.name}: {found[0]}"


def test_the_kernel_names_no_wing() -> None:
    assert list(named_wings(KERNEL)) == []


@pytest.mark.parametrize("word", ["kobold", "Ollama", "cluster", "ray"])
def test_a_planted_word_is_found(word: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"x = 1  # as {word} does\n", encoding="utf-8")
    (tmp_path / "array.py").write_text("arrays = [array, gray]\n", encoding="utf-8")
    assert list(named_wings(tmp_path)) == [f"module.py: {word}"]


def imported(file: Path) -> set[str]:
    """The packages that a module imports, be it lazily or for its types."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_the_kernel_imports_no_wing() -> None:
    assert [file for file in KERNEL.rglob("*.py") if imported(file) & {*WINGS}] == []


@wing
def test_wings_do_not_know_each_other(package: str) -> None:
    [folder] = REPOSITORY.glob(f"*/{package}")
    for file in folder.rglob("*.py"):
        others = imported(file) & {*WINGS} - {package}
        assert {(package, other) for other in others} <= MAY_USE, file
