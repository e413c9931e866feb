"""Tool calls whose names stand in front of the JSON."""

import re
from dataclasses import KW_ONLY, dataclass

from parsers.call import Call
from parsers.frame import SPACE
from parsers.named_call import Field, Head, NamedCall
from parsers.tagged_calls import TaggedCalls

_FENCE_END = re.compile(r"[ \t\r\n`]*")


@dataclass(frozen=True)
class NamedCalls(TaggedCalls):
    """`start`, the head of a call, a JSON object, `end`, any number of times.

    `first`, `marks`, `fence`, `content_name`: the head, see `Head`.
    """

    _: KW_ONLY
    first: Field = Field.NAME
    marks: tuple[tuple[str, Field], ...]
    fence: str = ""
    content_name: str = ""

    @property
    def _content_name(self) -> str:
        return self.content_name

    def _written_name(self, name: str) -> str:
        return name

    def _bare_name(self, name: str) -> str:
        return rf"[\s\x1c-\x1f]*{re.escape(name)} *\n"

    @property
    def between(self) -> re.Pattern[str]:
        """White space, and the end of the fence."""
        return _FENCE_END if self.fence else SPACE

    def _new_call(self) -> Call:
        head = Head(self.first, self.marks, self.fence, self.content_name)
        return NamedCall(head, needs_object=self.bare)
