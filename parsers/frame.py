"""What stands around tool calls."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Frame:
    """The tags of a format, and what may stand between them and the calls.

    `start`, `end`: around one call, or a block of them. `also`: what may stand for `start`.
    `opening`, `closing`: around all of them; they may be left out. An empty tag means that there is
    none.

    `bare`: the answer may begin with a call without `start`. So may one that means something else:
    therefore only offered functions can be called.

    `id_length`: how many letters and digits an id has, if templates insist on it.
    """

    start: str
    end: str = ""
    _: KW_ONLY
    also: tuple[str, ...] = ()
    opening: str = ""
    closing: str = ""
    bare: bool = False
    id_length: int | None = None

    before: ClassVar[re.Pattern[str]] = SPACE
    """What may stand between `start` and a call."""
    begins_with: ClassVar[str] = ""
    """What a call begins with; if that is something, a block may hold several."""

    @property
    def between(self) -> re.Pattern[str]:
        """What may stand behind a call; it goes with the call, up to its last closer."""
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
