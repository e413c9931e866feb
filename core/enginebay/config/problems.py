"""Problems of a config: where each is, and what to do about it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of the file: `("models", 0, "path")`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `where`: a file, a variable or a flag; `key`: `models[0].path`.

    `line` counts from 1; 0 is for problems without a line.
    """

    where: str
    key: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return ": ".join(part for part in (where, self.key, self.message) if part)


class ConfigError(Exception):
    """The config cannot be used; `problems` are all that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)


def further(known: Sequence[Problem], found: Iterable[Problem]) -> Iterator[Problem]:
    """The problems of `found` with other values than those that are known to be wrong."""
    wrong = {(problem.where, problem.key) for problem in known if problem.key}
    for problem in found:
        ends = [match.start() for match in re.finditer(r"[.[]|$", problem.key)]
        if not any((problem.where, problem.key[:end]) in wrong for end in ends):
            yield problem


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Sorted by file and line; those without a line come first."""
    files = list(dict.fromkeys(problem.where for problem in problems if problem.line))

    def place(problem: Problem) -> tuple[int, int]:
        return (files.index(problem.where), problem.line) if problem.line else (-1, 0)

    return sorted(problems, key=place)


def key_text(path: KeyPath) -> str:
    """`("models", 0, "path")` as `models[0].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def is_secret(path: KeyPath) -> bool:
    """Whether a value is secret, judging by the name of its key."""
    words = ("key", "keys", "token", "secret", "password")  # max_tokens is none
    return any(part.lower().endswith(words) for part in path if isinstance(part, str))
