"""Which folders of the parsers may import which: tables, families, and what families share."""

import ast
from pathlib import Path

import pytest

from tests.support import REPOSITORY

FAMILIES = {"json", "xml", "python", "channels", "reasoning"}
FLOORS = {"": FAMILIES | {"arguments", "stream"}, "arguments": {"stream"}, "stream": set[str]()}
FLOORS |= {family: {"arguments", "stream"} for family in FAMILIES}
"""What each folder may import beside itself; the tables stand in the top one."""


def arrows(root: Path) -> set[tuple[str, str]]:
    """The folders of `root` that import each other, wherever the import stands in a module."""
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                # `from enginebay_parsers import json` imports a folder, too.
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                package, *rest = name.split(".")
                if package == "enginebay_parsers":
                    folder = rest[0] if rest and (root / rest[0]).is_dir() else ""
                    found.add((path.parent.name if path.parent != root else "", folder))
    return {(one, other) for one, other in found if one != other}


def upwards(root: Path) -> set[tuple[str, str]]:
    """The arrows that the law does not allow."""
    return {(one, other) for one, other in arrows(root) if other not in FLOORS[one]}


def test_imports_go_down_and_families_do_not_know_each_other() -> None:
    root = REPOSITORY / "parsers" / "enginebay_parsers"
    assert {path.parent.name for path in root.glob("*/*.py")} == set(FLOORS) - {""}
    assert not upwards(root)
    assert {("", family) for family in FAMILIES} <= arrows(root), "no arrows are found any more"


@pytest.mark.parametrize(
    ("folder", "planted", "arrow"),
    [
        ("xml", "from enginebay_parsers.json.call import Call", ("xml", "json")),
        ("stream", "from enginebay_parsers.arguments import members", ("stream", "arguments")),
        ("arguments", "import enginebay_parsers.python.literal_value", ("arguments", "python")),
        (
            "channels",
            "def f():\n    from enginebay_parsers import reasoning",
            ("channels", "reasoning"),
        ),
        ("json", "from enginebay_parsers import TOOLS", ("json", "")),
    ],
)
def test_a_planted_arrow_is_found(
    tmp_path: Path, folder: str, planted: str, arrow: tuple[str, str]
) -> None:
    for name in FLOORS:
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / folder / "module.py").write_text(planted, encoding="utf-8")
    assert upwards(tmp_path) == {arrow}
