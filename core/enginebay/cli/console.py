"""Writing to the terminal: results to stdout, everything about them to stderr."""

from collections.abc import Iterable
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

WIDE = 1000  # of what is no terminal: nothing there needs to be wrapped


def stdout() -> Console:
    """For results."""
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=WIDE, highlight=False, markup=False)


def print_table(rows: Table) -> None:
    """Print results; off a terminal, each row is one line without trailing blanks."""
    console = stdout()
    if console.is_terminal:
        console.print(rows)
        return
    with console.capture() as captured:
        console.print(rows)
    for line in captured.get().rstrip("\n").split("\n"):
        console.print(line.rstrip(), soft_wrap=True)


def stderr() -> Console:
    """For progress, errors and notes."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def fail(problems: str | Iterable[object], *, code: int = 1) -> NoReturn:
    """Print the errors, one per line, and exit."""
    console = stderr()
    for problem in [problems] if isinstance(problems, str) else problems:
        console.print(str(problem))
    raise typer.Exit(code)


def table(*columns: str) -> Table:
    """A table without lines, easy to read by people and by `awk`."""
    result = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in result.columns:
        column.overflow = "fold"
    return result
