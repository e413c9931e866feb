"""How models write calls, down to the white space."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from enginebay import Grammar, Pattern, Text, choice, sequence

_BLANK = re.compile(r"\$(name|arguments|id|number)")
_NUMBER = Pattern("0|[1-9][0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands between the tags of a format.

    `lead`, `tail`: behind the start tag and in front of the end tag; a `lead` of white space may be
    left out. `between`: between calls that share one pair of tags; None: each has its own, and
    `gap` stands between them.

    `calls`: the ways to write one, with `$name`, `$arguments`, `$id` and `$number` in their places.

    `header`: may stand in front of everything; the reasoning format takes it away.
    """

    lead: str = ""
    between: str | None = None
    tail: str = ""
    gap: str = ""
    calls: tuple[str, ...] = ()
    header: str = ""

    def call(self, name: str, arguments: Grammar, id_length: int | None) -> Grammar:
        """One call; `name` is as it has to be written."""
        blanks = _blanks(name, arguments, id_length)
        return choice(*(sequence(*_fill(each, blanks)) for each in self.calls))

    def behind_name(self, arguments: Grammar) -> Grammar:
        """What follows the name and the character behind it."""
        _, _, behind = self.calls[0].partition("$name")
        return sequence(*_fill(behind[1:], _blanks("", arguments, None)))

    def sample(self, name: str) -> str:
        """A call without arguments."""
        samples = {"name": name, "arguments": "{}", "id": "0", "number": "0"}
        return _BLANK.sub(lambda blank: samples[blank[1]], self.calls[0])


def _blanks(name: str, arguments: Grammar, id_length: int | None) -> dict[str, Grammar]:
    length = "1,40" if id_length is None else id_length
    return {
        "name": Text(name),
        "arguments": arguments,
        "id": Pattern(f"[A-Za-z0-9]{{{length}}}"),
        "number": _NUMBER,
    }


def _fill(call: str, blanks: Mapping[str, Grammar]) -> Iterator[Grammar | str]:
    for number, piece in enumerate(_BLANK.split(call)):
        yield blanks[piece] if number % 2 else piece
