"""`docs/guides/troubleshooting.md` quotes what the product really says."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTES = [
    line
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in block.split("\n")
]
PRINTF = re.compile(r"%[-+ #0]*[\d.]*[a-zA-Z]")


def sources() -> Iterator[Path]:
    for folder in ("core", "backends", "cluster"):
        yield from (REPOSITORY / folder).rglob("*.py")
    yield from (REPOSITORY / "start.py",)


def text_of(node: ast.expr) -> str:
    """A string of the source, with `…` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return PRINTF.sub("…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return "…"


def texts_in(path: Path) -> Iterator[str]:
    """All strings of a module but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docstrings:
            yield text_of(node)


@cache
def said() -> str:
    return "\n".join(re.sub("…+", "…", text) for path in sources() for text in texts_in(path))


def is_said(quote: str) -> bool:
    """Whether one text of the product has these words in a row, whatever `…` stands for."""
    return any(quote.strip("… ") in line for line in said().splitlines())


@pytest.mark.parametrize("quote", [quote for quote in QUOTES if quote])
def test_the_product_says_so(quote: str) -> None:
    assert is_said(quote)


def test_a_text_that_nothing_says_is_noticed() -> None:
    assert not is_said("port … is taken")
    assert is_said("the engine died: …")
    assert not is_said("the engine died because of …")


def test_each_entry_with_a_status_quotes_a_text() -> None:
    entries = re.split(r"^### ", PAGE.partition("\n## Symptoms")[0], flags=re.MULTILINE)[1:]
    assert [entry.partition("\n")[0] for entry in entries if "```text" not in entry] == []
