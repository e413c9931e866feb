"""Any calls, written as in the raw example of each format whose arguments are JSON.

An example has two calls of `get_weather`, for Oslo and for Rome.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay_parsers import TOOLS
from enginebay_parsers.json.base import JsonFormat
from tests.parsers.cutting import Joined

_PARTS = re.compile(r'get_weather|\{"city": "(?:Oslo|Rome)"\}')
# Ids end in the number of their call, which is marked while calls are put together.
_ID = re.compile(r"(abcdefgh|functions\.get_weather:)([01])")
_THIS, _NEXT = "\ue000", "\ue001"


@dataclass(frozen=True)
class Written:
    """`before`, name, `middle`, arguments, `between` and more calls, `after`.

    `id`: what the id of a call is that the format writes in a place where it counts, which is in
    front of the arguments. `first`: nothing may stand in front.
    """

    before: str
    middle: str
    between: str
    after: str
    id: str | None = None
    first: bool = False

    def text(self, *calls: tuple[str, str]) -> str:
        """The text of calls, each a name and arguments."""
        text = _numbered(self.before, 0)
        for number, (name, arguments) in enumerate(calls):
            text += _numbered(self.between, number - 1) if number else ""
            text += f"{name}{_numbered(self.middle, number)}{arguments}"
        return text + _numbered(self.after, len(calls) - 1)

    def parts(self, *calls: tuple[str, str]) -> Joined:
        """What the text must come out as."""
        ids = [
            () if self.id is None else (f"{self.id.replace('NAME', name)}{number}",)
            for number, (name, _) in enumerate(calls)
        ]
        return [
            ("call", i, *call, *id) for i, (call, id) in enumerate(zip(calls, ids, strict=True))
        ]

    def pieces(self) -> Sequence[str]:
        """Everything a text of this format is made of."""
        texts = (self.before, self.middle, self.between, self.after)
        return [_numbered(text, 0) for text in texts if text]


def written(form: JsonFormat) -> Written:
    """How the example of a format writes calls."""
    marked = _ID.sub(lambda id: id[1] + (_NEXT if id[2] == "1" else _THIS), form.example)
    before, middle, between, _, after = _PARTS.split(marked)
    id = "functions.NAME:" if before.endswith("functions.") else "abcdefgh"
    in_front = _THIS in before + middle or _NEXT in between
    after = after.replace(_NEXT, _THIS)
    return Written(before, middle, between, after, id if in_front else None, form.bare)


def _numbered(text: str, number: int) -> str:
    return text.replace(_THIS, str(number)).replace(_NEXT, str(number + 1))


ALL = {name: written(form) for name, form in TOOLS.items() if isinstance(form, JsonFormat)}
