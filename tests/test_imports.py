"""Who may import whom (`docs/architecture.md`), read from the source."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import enginebay
from enginebay.plugins import Plugins

ROOT = Path(__file__).parents[1]
ENGINE_LIBRARIES = {"torch", "transformers", "exllamav2", "llama_cpp", "accelerate", "safetensors"}
SHARED = {"enginebay_checkpoint"}
IF_THERE = {"enginebay_cluster": {"enginebay_responses"}}
"""Packages that another one uses if they are installed: servers share the answers that are kept."""
BACKENDS = set(Plugins().backends)
CORE = "core/enginebay"
ADAPTERS = [
    path.name
    for root in ("backends", "parsers", "apis", "cluster", "page", "conformance")
    for path in (ROOT / root).glob("enginebay_*")
]
OURS = {"enginebay", *ADAPTERS}
FLOORS = (
    "cli",
    "testing",
    "kernel",
    "server",
    "apis",
    "serving",
    "chat",
    "models",
    "config",
    "plugins",
    "engine",
    "grammar",
    "media",
    "contract",
    "sqlite_file",
)
"""The rooms of core, top to bottom; `plugins` and `sqlite_file` are modules."""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or ""


def top(module: str) -> str:
    return module.partition(".")[0]


def arrows(root: Path) -> dict[str, set[str]]:
    """For each module of core all that it imports from core, be it lazily or for its types."""
    files = {
        ".".join(path.relative_to(root / "core").with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in (root / CORE).rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        found[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found[module] |= {name if name in files else node.module for name in names}
        found[module] &= files.keys() - {"enginebay"}
    return found


def upward(root: Path) -> list[str]:
    """Imports of core from a room of a higher floor."""
    return [
        f"{module} imports {target}"
        for module, targets in arrows(root).items()
        for target in targets
        if module != "enginebay" and FLOORS.index(room(module)) > FLOORS.index(room(target))
    ]


def room(module: str) -> str:
    return module.split(".")[1]


def circles(root: Path) -> list[str]:
    """Folders of core whose files and folders import each other in a circle."""
    found = arrows(root)
    folders = {module.rpartition(".")[0] for module in found} - {""}
    return [circle for folder in sorted(folders) if (circle := circle_in(folder, found))]


def circle_in(folder: str, found: dict[str, set[str]]) -> str:
    prefix = f"{folder}."

    def part(module: str) -> str:
        return module.removeprefix(prefix).partition(".")[0]

    graph: dict[str, set[str]] = {}
    for module, targets in found.items():
        if module.startswith(prefix):
            inside = {part(target) for target in targets if target.startswith(prefix)}
            graph.setdefault(part(module), set()).update(inside - {part(module)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return f"{folder}: {' <- '.join(error.args[1])}"
    return ""


def test_rooms_import_downwards_only() -> None:
    assert {room(module) for module in arrows(ROOT) if module != "enginebay"} == set(FLOORS)
    assert upward(ROOT) == []


def test_no_folder_has_a_circle() -> None:
    assert circles(ROOT) == []


@pytest.mark.parametrize(
    ("file", "imported"),
    [
        ("contract/types.py", "enginebay.server.app"),
        ("models/template/features.py", "enginebay.models.registry"),
        ("chat/answer/usage.py", "enginebay.chat.plan.prompt"),
        ("engine/wire.py", "enginebay.engine.backend"),
    ],
)
def test_a_planted_arrow_is_found(file: str, imported: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / CORE, tmp_path / CORE, ignore=shutil.ignore_patterns("__pycache__"))
    planted = tmp_path / CORE / file
    lazily = f"\n\ndef planted():\n    import {imported}\n"
    planted.write_text(planted.read_text(encoding="utf-8") + lazily, encoding="utf-8")
    assert upward(tmp_path) or circles(tmp_path)


def test_no_basename_twice_in_a_room() -> None:
    paths = [path for path in modules(CORE) if path.name != "__init__.py"]
    names = Counter((path.relative_to(ROOT / CORE).parts[0], path.name) for path in paths)
    assert [key for key, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_core_imports_no_backend_no_parser_no_engine_library(path: Path) -> None:
    assert not {top(m) for m in imports(path)} & ({*ADAPTERS} | ENGINE_LIBRARIES)


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_core_names_no_backend(path: Path) -> None:
    """Not in an import, and not in a string that does anything: docstrings may.

    `hf://` is the hub's.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements
    ]
    words = {word for text in texts for word in re.findall(r"[\w-]+", text.replace("hf://", ""))}
    assert not words & BACKENDS


def test_only_tests_of_exllamav2_need_it() -> None:
    """So that the backend can be taken out with them: files that have it in their name."""
    needed = [
        file.relative_to(ROOT)
        for file in modules("tests")
        if any(module.startswith("enginebay_exllamav2") for module in imports(file))
    ]
    others = [file for file in needed if "exllamav2" not in str(file)]
    assert others == []


@pytest.mark.parametrize(
    "path",
    [
        path
        for root in ("backends", "parsers", "apis", "cluster", "page", "conformance")
        for path in modules(root)
    ],
    ids=str,
)
def test_adapters_import_only_the_public_face_and_their_own_package(path: Path) -> None:
    own = path.relative_to(ROOT).parts[1]
    may = {"enginebay", own, *SHARED, *IF_THERE.get(own, ())}
    assert {top(m) for m in imports(path)} & OURS <= may


@pytest.mark.parametrize("path", modules("backends"), ids=str)
def test_engines_know_nothing_of_each_other(path: Path) -> None:
    own = path.relative_to(ROOT / "backends").parts[0]
    assert {top(m) for m in imports(path)} & {*ADAPTERS} <= {own, *SHARED}


@pytest.mark.parametrize("name", sorted(BACKENDS - {"cluster"}))
def test_an_engine_is_gone_with_its_folder_and_no_other(name: str, tmp_path: Path) -> None:
    backends = tmp_path / "backends"
    leave_out = shutil.ignore_patterns(f"enginebay_{name}", "__pycache__")
    shutil.copytree(ROOT / "backends", backends, ignore=leave_out)
    code = (
        f"import sys; sys.path.remove({str(ROOT / 'backends')!r}); "
        "from enginebay.plugins import Plugins; print(*Plugins().backends)"
    )
    printed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(backends)},
    ).stdout
    assert set(printed.split()) == BACKENDS - {name}


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_web_framework_stays_in_the_server(path: Path) -> None:  # LF-1
    if {"fastapi", "starlette"} & {top(m) for m in imports(path)}:
        assert path.relative_to(ROOT / CORE).parts[0] in ("server", "kernel.py")


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_pydantic_stays_in_bodies_and_config(path: Path) -> None:
    relative = path.relative_to(ROOT / CORE)
    if "pydantic" in {top(m) for m in imports(path)}:
        wire = relative.name in ("composer.py", "sse.py", "open_object.py")
        options = relative.as_posix() == "models/check_config.py"
        assert "schemas" in relative.parts or relative.parts[0] == "config" or wire or options


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_only_the_plugin_modules_touch_pluggy(path: Path) -> None:
    if "pluggy" in {top(m) for m in imports(path)}:
        assert path.name in ("plugins.py", "hookspecs.py")


def test_the_server_starts_without_any_engine_library() -> None:
    """Every module of core, and the built-in plugins, in a fresh interpreter."""
    names = [
        ".".join(p.relative_to(ROOT / "core").with_suffix("").parts).removesuffix(".__init__")
        for p in modules(CORE)
    ]
    names += ["enginebay", *ADAPTERS]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"assert not {ENGINE_LIBRARIES!r} & set(sys.modules), set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_face_is_exact() -> None:
    """`enginebay` offers what its stub lists, each from where it is made, and nothing else."""
    tree = ast.parse((ROOT / CORE / "__init__.pyi").read_text(encoding="utf-8"))
    assert all(isinstance(node, ast.ImportFrom) for node in tree.body)
    names = [
        alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert all(alias.asname == alias.name for alias in names)
    assert {name for name in dir(enginebay) if not name.startswith("_")} >= {
        alias.name for alias in names
    }
    for alias in names:
        assert getattr(enginebay, alias.name)


@pytest.mark.parametrize("path", modules(CORE), ids=str)
def test_what_routes_share_is_typed(path: Path) -> None:
    """`services(http)` has types, `app.state` has none."""
    if path.relative_to(ROOT / CORE).as_posix() not in ("server/services.py", "server/app.py"):
        assert "app.state" not in path.read_text(encoding="utf-8")
