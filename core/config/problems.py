"""Problems of a config: where each is, and what to do about it."""

from collections.abc import Sequence
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


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Sorted by line; those without a line come first."""
    return sorted(problems, key=lambda problem: problem.line)


def key_text(path: KeyPath) -> str:
    """`("models", 0, "path")` as `models[0].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def is_secret(path: KeyPath) -> bool:
    """Whether a value is secret, judging by the name of its key."""
    words = ("key", "keys", "token", "secret", "password")  # max_tokens is none
    return any(part.lower().endswith(words) for part in path if isinstance(part, str))
