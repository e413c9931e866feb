"""The syntax of calls with JSON arguments: the tags around them, and the layout between."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from enginebay import Grammar, Pattern, Text, choice, sequence

SPACE = re.compile(r"[ \t\r\n]*")
_BLANK = re.compile(r"\$(name|arguments|id|number)")
_NUMBER = Pattern("0|[1-9][0-9]{0,2}")


@dataclass(frozen=True)
class Frame:
    """The tags of a format, and what may come between them and the calls.

    `start`, `end`: around one call, or a block of them. `also`: what may stand for `start`.
    `opening`, `closing`: around all of them; they may be left out. An empty tag means that there is
    none.

    `bare`: the answer may begin with a call without `start`. So may one that means something else:
    therefore only offered functions can be called.

    `dropped`: tags around whole messages, which are no part of them.

    `fence`: how the code fence begins in which the model's own template writes a call. Without one,
    code holds no calls.

    `id_length`: how many letters and digits an id has, if templates insist on it.
    """

    start: str
    end: str = ""
    _: KW_ONLY
    also: tuple[str, ...] = ()
    opening: str = ""
    closing: str = ""
    bare: bool = False
    dropped: tuple[str, ...] = ()
    fence: str = ""
    id_length: int | None = None

    before: ClassVar[re.Pattern[str]] = SPACE
    """What may stand between `start` and a call."""
    begins_with: ClassVar[str] = ""
    """What a call begins with; if that is something, a block may hold several."""

    @property
    def between(self) -> re.Pattern[str]:
        """What may follow a call; it belongs to the call, up to its last closer."""
        return SPACE

    @property
    def starts(self) -> tuple[str, ...]:
        """The tags that begin a call, or a block of them."""
        return tuple(tag for tag in (self.start, *self.also) if tag)

    def accepts_id(self, id: str) -> bool:
        """Whether templates take this id."""
        return self.id_length is None or (
            len(id) == self.id_length and id.isascii() and id.isalnum()
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """What comes between the tags of a format.

    `lead`, `tail`: after the start tag and in front of the end tag; a `lead` of white space may be
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
        """What follows the name and the character after it."""
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
