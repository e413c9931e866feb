"""Writes `docs/reference/conformance.md`: every row, the code behind it and the tests that show it.

python -m tests.conformance.table    # writes the file

Tests name the rows they show in a comment or docstring (`# TAB-68, WEB-1..3`); the checks of
`conformance/enginebay_conformance` name theirs themselves.
"""

import ast
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path

from enginebay_conformance.checks import CHECKS
from enginebay_conformance.rows import Row, find_ids, load_rows
from tests.support import REPOSITORY

FILE = REPOSITORY / "docs" / "reference" / "conformance.md"
COMMAND = "python -m tests.conformance.table"
INTRODUCTION = Path(__file__).with_name("introduction.md")

FAMILIES = {
    "MLC": "MLC-LLM's `request_chat_completion`",
    "TAB": "TabbyAPI's `chat_completion.py`",
    "WEB": "WebLLM's response types",
    "LF": "LLaMA-Factory's API",
    "VLLM": "vLLM's `serving_chat.py`",
    "FIX": "Claims put right",
    "SCO": "Scores and embeddings",
    "PLG": "Plugins and Python",
    "MM": "Media in chats",
    "MEDIA": "Media, in detail",
    "RESP": "OpenAI's Responses",
    "MSG": "Anthropic's Messages",
    "OLL": "Ollama's API",
    "KOB": "KoboldCpp's API",
    "LLS": "Routes of llama-server",
    "MOD": "Models by name",
    "ENG": "Engines",
    "GPU": "GPUs",
    "OPS": "Operation",
    "KEY": "Keys and usage",
    "SCALE": "Clusters",
    "REAL": "Any machine",
    "SEC": "Security",
    "ANS": "Answers that other servers' users missed",
    "WIRE": "The wire, in detail",
    "EVE": "The first evening",
    "CLU": "Clusters, in detail",
}
_SIZES = {
    **{"MLC": 39, "TAB": 90, "WEB": 40, "LF": 33, "VLLM": 105},
    **{"FIX": 17, "SCO": 7, "PLG": 2, "MM": 12, "MEDIA": 47},
    **{"RESP": 40, "MSG": 26, "OLL": 22, "KOB": 14, "LLS": 3},
    **{"MOD": 5, "KEY": 3, "SCALE": 21, "REAL": 15, "SEC": 12},
}
NUMBERS = {
    **{family: range(1, size + 1) for family, size in _SIZES.items()},
    **{"ENG": (1, 2, 4, 5, 7, 8, 9, 10, 11), "GPU": (3,), "OPS": (1, 2, 3, 4, 8)},
    **{"ANS": (*range(1, 7), 8, 9, 10), "WIRE": range(1, 11), "EVE": range(1, 10), "CLU": (4,)},
}
"""The rows of each family; those of the five systems are 307."""

IDS = [f"{family}-{number}" for family in FAMILIES for number in NUMBERS[family]]
"""Every row, in the order of the file."""


def written() -> str:
    """What the file should say. `LookupError` for rows that are missing, or that nothing shows."""
    rows, tests = load_rows(), cited()
    if missing := sorted(set(IDS) ^ set(rows)):
        raise LookupError(f"rows that are missing, or have no place: {', '.join(missing)}")
    if unshown := [row.id for row in rows.values() if not (row.later or tests[row.id])]:
        raise LookupError(f"rows that no test shows: {', '.join(unshown)}")
    parts = [INTRODUCTION.read_text(encoding="utf-8").rstrip()]
    for family, title in FAMILIES.items():
        parts.append(f"\n## {title}\n")
        parts.append("| row | what | where | shown by |\n| --- | --- | --- | --- |")
        parts += [
            _line(row, tests[row.id]) for row in rows.values() if row.id.startswith(f"{family}-")
        ]
    return "\n".join(parts) + "\n"


@cache
def cited() -> dict[str, list[str]]:
    """The tests that name each row, as `file::test`; those of clients are steps of `run`."""
    found: dict[str, list[str]] = defaultdict(list)
    folder, examples = REPOSITORY / "tests", REPOSITORY / "examples"
    paths = [*folder.rglob("test_*.py"), *(folder / "clients").glob("*.py")]
    for path in sorted([*paths, *examples.glob("*/tests/test_*.py")]):
        name = path.relative_to(folder if path.is_relative_to(folder) else REPOSITORY).as_posix()
        for id, test in _citations(path):
            shown = f"{name}::{test}" if test else name
            if shown not in found[id]:
                found[id].append(shown)
    for check in CHECKS:
        for id in check.rows:
            found[id].append(check.name)
    return found


def _citations(path: Path) -> Iterator[tuple[str, str]]:
    """Rows that a file names in comments and docstrings, with the test around or below them."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    tests = _tests(tree, source.splitlines())
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for id in find_ids(token.string):
                yield id, _test_at(token.start[0], tests)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for id in find_ids(ast.get_docstring(node) or ""):
                yield id, _test_at(getattr(node, "lineno", 0), tests)


def _tests(tree: ast.Module, lines: list[str]) -> list[tuple[int, int, str]]:
    """First and last line of each test function, its decorators and comments above included."""
    found = []
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test"):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            while first > 1 and lines[first - 2].startswith("#"):
                first -= 1
            found.append((first, node.end_lineno or node.lineno, node.name))
    return found


def _test_at(line: int, tests: list[tuple[int, int, str]]) -> str:
    return next((name for first, last, name in tests if first <= line <= last), "")


def _line(row: Row, tests: list[str]) -> str:
    what = row.what
    if row.differs:
        what += f". **Differs:** {row.differs}"
    if row.later:
        what += f". **Later:** with {row.later}"
    shown = ", ".join(f"`{test}`" for test in tests) or "later"
    return f"| {row.id} | {what} | [`{row.where}`](../../{row.where}) | {shown} |"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
