"""What the formats have in common whose calls are read by a `CallsParser`."""

import re
import secrets
import string
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field

from enginebay import Parser, Schemas, Span, ToolFormat
from parsers.call import Call
from parsers.calls_parser import CallsParser
from parsers.frame import Frame

_IN_ID = string.ascii_letters + string.digits


@dataclass(frozen=True)
class TaggedCalls(Frame, ToolFormat):
    """Tool calls in a `Frame`.

    `evidence`: a regular expression that finds something in the chat templates of this format; if
    there is none, its tags do.
    """

    _: KW_ONLY
    evidence: str = ""
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        opens_with = "{[" if self.begins_with else ""
        spans = [Span(start, self.end, opens_with) for start in self.starts]
        if self.opening and self.closing:
            spans.append(Span(self.opening, self.closing))
        object.__setattr__(self, "spans", tuple(spans))

    def matches(self, template: str) -> bool:
        """Whether the evidence occurs in the chat template."""
        if self.evidence:
            return re.search(self.evidence, template) is not None
        return self.start in template and self.end in template

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice: see `CallsParser`.

        A call of a function that was not offered is still a call: the client can tell the model so.
        Where a call may stand without a tag, it is text instead, since there it is more likely JSON
        that somebody has asked for.
        """
        return CallsParser(self, self._new_call, schemas if self.bare else None)

    def new_call_id(self) -> str:
        """As many letters and digits as templates insist on, or else OpenAI's form."""
        if self.id_length is None:
            return ToolFormat.new_call_id(self)
        return "".join(secrets.choice(_IN_ID) for _ in range(self.id_length))

    @abstractmethod
    def _new_call(self) -> Call:
        """What reads the next call."""
