"""Grammar expressions: the constraints of requests, tool formats and reasoning formats.

An expression knows no tokenizer. Texts in it may be special tokens of one model and plain text of
another; the compiler in the engine's process decides.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """This text. The text of a special token in it stands for that token, never for its spelling.

    A token that ends completions is left out, as it is allowed at the end anyway.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that all of a regular expression matches; never a special token.

    The syntax is that of Rust's regex crate (https://docs.rs/regex/latest/regex/#syntax): without
    lookaround or backreferences.
    """

    pattern: str


@dataclass(frozen=True, slots=True)
class Json:
    """JSON that is valid against a JSON Schema (draft 2020-12), which is JSON text itself.

    Properties come in the order of the schema, additional ones after them.
    """

    schema: str


@dataclass(frozen=True, slots=True)
class Lark:
    """What a whole grammar in llguidance's dialect of Lark matches.

    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
    """

    source: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence."""

    items: tuple["Grammar", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of one."""

    items: tuple["Grammar", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeated `least` to `most` times; None is unlimited."""

    item: "Grammar"
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An `opening` in free text, and what must follow it then.

    `goes_on`: text follows even where nothing may follow the rest of a case.
    """

    opening: "Text | Pattern"
    rest: "Grammar"
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """Any text and special tokens, except that where a case opens, its rest must follow.

    `first`: cases that count only where this begins; what follows their rest is part of the rest.
    `once`: nothing follows the rest of a case.
    """

    cases: tuple[Case, ...] = ()
    first: tuple[Case, ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True)
class UpTo:
    """Any text up to the first `end`, and that; where a case opens, its rest must follow.

    The text holds none of the texts `without`, other than in the rest of a case.
    """

    end: str
    cases: tuple[Case, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Until:
    """A text up to and including the first `end`.

    Every one of the regular expressions `all` matches the whole text, and none of `none` does. The
    text holds no special token, and none of the texts `without`.
    """

    end: str
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


Grammar: TypeAlias = Text | Pattern | Json | Lark | Sequence | Choice | Repeat | Free | UpTo | Until


def sequence(*items: Grammar | str) -> Grammar:
    """One after the other; a `str` is `Text`."""
    parts = tuple(Text(item) if isinstance(item, str) else item for item in items if item != "")
    return parts[0] if len(parts) == 1 else Sequence(parts)


def choice(*items: Grammar | str) -> Grammar:
    """One of several; a `str` is `Text`."""
    parts = tuple(Text(item) if isinstance(item, str) else item for item in items)
    return parts[0] if len(parts) == 1 else Choice(parts)


def optional(item: Grammar | str) -> Grammar:
    """This or nothing."""
    return Repeat(Text(item) if isinstance(item, str) else item, 0, 1)


def json_value(schema: Mapping[str, object] | bool) -> Json:
    """JSON that is valid against this schema."""
    return Json(json.dumps(schema if isinstance(schema, bool) else dict(schema)))
