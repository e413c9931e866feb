"""Who may import whom (`docs/architecture.md`), read from the source."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.plugins import Plugins

ROOT = Path(__file__).parents[1]
ENGINE_LIBRARIES = {"torch", "transformers", "exllamav2", "llama_cpp", "accelerate", "safetensors"}
SHARED = {"batching", "checkpoint", "sampling", "starting"}
BACKENDS = set(Plugins().backends)
OURS = {"core", "backends", "parsers", "enginebay"}


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


@pytest.mark.parametrize("path", modules("core"), ids=str)
def test_core_imports_no_backend_no_parser_no_engine_library(path: Path) -> None:
    assert not {top(m) for m in imports(path)} & ({"backends", "parsers"} | ENGINE_LIBRARIES)


@pytest.mark.parametrize("path", modules("core"), ids=str)
def test_core_names_no_backend(path: Path) -> None:
    """Not in an import, and not in a string that does anything: docstrings may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements
    ]
    assert not {word for text in texts for word in re.findall(r"[\w-]+", text)} & BACKENDS


def test_only_tests_of_exllamav2_need_it() -> None:
    """So that the backend can be taken out with them: files that have it in their name."""
    needed = [
        file.relative_to(ROOT)
        for file in modules("tests")
        if any(module.startswith("backends.exllamav2") for module in imports(file))
    ]
    others = [file for file in needed if "exllamav2" not in str(file)]
    assert others == []


@pytest.mark.parametrize("path", modules("backends") + modules("parsers"), ids=str)
def test_adapters_import_only_the_public_face_and_their_own_package(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    assert {top(m) for m in imports(path)} & OURS <= {"enginebay", own}


@pytest.mark.parametrize("path", modules("backends"), ids=str)
def test_engines_know_nothing_of_each_other(path: Path) -> None:
    own = path.relative_to(ROOT / "backends").parts[0]
    if own != "__init__.py":  # which registers them all
        ours = {m.split(".")[1] for m in imports(path) if m.startswith("backends.")}
        assert ours <= {own, *SHARED}


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_an_engine_is_gone_with_its_folder_and_no_other(name: str, tmp_path: Path) -> None:
    leave_out = shutil.ignore_patterns(name, "__pycache__")
    shutil.copytree(ROOT / "backends", tmp_path / "backends", ignore=leave_out)
    code = "from core.plugins import Plugins; print(*Plugins().backends)"
    printed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))},
    ).stdout
    built_in = {file.parent.name for file in (ROOT / "backends").glob("*/backend.py")}
    assert built_in & set(printed.split()) == built_in - {name}


@pytest.mark.parametrize("path", modules("core"), ids=str)
def test_web_framework_stays_at_the_edge(path: Path) -> None:
    relative = path.relative_to(ROOT / "core")
    if {"fastapi", "starlette"} & {top(m) for m in imports(path)}:
        assert relative.parts[0] in ("api", "app.py", "access")


@pytest.mark.parametrize("path", modules("core"), ids=str)
def test_pydantic_stays_in_bodies_and_config(path: Path) -> None:
    relative = path.relative_to(ROOT / "core")
    if "pydantic" in {top(m) for m in imports(path)}:
        wire = relative.as_posix() in ("chat/compose.py", "chat/compose_text.py", "api/sse.py")
        sdk = relative.as_posix() == "testing/conformance/sdk.py"  # its helpers take models
        assert relative.parts[0] in ("schemas", "config") or wire or sdk


@pytest.mark.parametrize("path", modules("core"), ids=str)
def test_only_the_plugin_modules_touch_pluggy(path: Path) -> None:
    if "pluggy" in {top(m) for m in imports(path)}:
        assert path.name in ("plugins.py", "hookspecs.py")


def test_the_server_starts_without_any_engine_library() -> None:
    """Every module of core, and the built-in plugins, in a fresh interpreter."""
    names = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for p in modules("core")
    ]
    names += ["enginebay", "backends", "parsers"]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"assert not {ENGINE_LIBRARIES!r} & set(sys.modules), set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_face_is_exact() -> None:
    """`enginebay` re-exports from core and holds nothing else."""
    tree = ast.parse((ROOT / "enginebay.py").read_text(encoding="utf-8"))
    body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    assert all(isinstance(node, ast.ImportFrom) for node in body)
    names = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in names)
