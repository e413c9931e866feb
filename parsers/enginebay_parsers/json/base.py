"""Base of the formats whose calls are read by a `CallsParser`."""

import re
import secrets
import string
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field

from enginebay import CallGrammar, Parser, SchemaError, Schemas, Span, ToolCallDelta, ToolFormat
from enginebay_parsers.arguments.call_grammar import argument_grammars
from enginebay_parsers.json.call import Call
from enginebay_parsers.json.calls_reader import CallsParser
from enginebay_parsers.json.json_grammar import JsonGrammar
from enginebay_parsers.json.syntax import Frame, Layout

_IN_ID = string.ascii_letters + string.digits


@dataclass(frozen=True)
class JsonFormat(Frame, ToolFormat):
    """Tool calls in a `Frame`.

    `evidence`: a regular expression that matches the chat templates of this format; by default,
    its tags. `layout`: the text between the tags, as models write it.
    """

    _: KW_ONLY
    evidence: str = ""
    layout: Layout = field(default_factory=Layout)
    example: str = ""
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

        A call of a function that was not offered is still a call: the client can tell the model.
        Where a call may stand without a tag, it is text instead, since there it is more likely JSON
        that somebody has asked for.
        """
        return CallsParser(self, self._new_call, schemas if self.bare else None)

    def syntax(self) -> tuple[str, ...]:
        """All tags, and the layout."""
        layout = self._layout
        texts = (layout.lead, layout.between, layout.tail, layout.gap, *layout.calls, layout.header)
        tags = (*self.starts, self.end, self.opening, self.closing, *self.dropped)
        return tuple(filter(None, (*tags, *texts)))

    def answer_parser(self) -> Parser | None:
        """A parser that drops what surrounds answers: a name before content, tags."""
        if not (self._content_name or self.dropped):
            return None
        return CallsParser(self, self._new_call, names=())

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar:
        """Calls in the layout of the models.

        `SchemaError` for a function with a name that could not be read back.
        """
        for name in schemas:
            self._require_readable(name)
        return JsonGrammar(
            self,
            self._layout,
            argument_grammars(schemas),
            self._written_name,
            self._bare_name,
            parallel,
            self._content_name,
        ).whole()

    def _require_readable(self, name: str) -> None:
        layout = self._layout
        start = "" if self.bare else self.start
        parser = self.parser({name: {}})
        parts = parser.feed(f"{start}{layout.lead}{layout.sample(self._written_name(name))}")
        calls = [
            part.name for part in (*parts, *parser.finish()) if isinstance(part, ToolCallDelta)
        ]
        if calls[:1] != [name] or any(calls[1:]):
            raise SchemaError("", f"the model cannot write the name {name!r} in a call")

    @property
    def _layout(self) -> Layout:
        """The layout, with the ways to write a call."""
        return self.layout

    @property
    def _content_name(self) -> str:
        """A name before content."""
        return ""

    @abstractmethod
    def _written_name(self, name: str) -> str:
        """A name as it stands in a call."""

    @abstractmethod
    def _bare_name(self, name: str) -> str:
        """A pattern for how a call without a start tag begins, up to a character after its name.

        It matches whatever the parser takes for that.
        """

    def new_call_id(self) -> str:
        """An id with the length the templates require, or else in OpenAI's form."""
        if self.id_length is None:
            return ToolFormat.new_call_id(self)
        return "".join(secrets.choice(_IN_ID) for _ in range(self.id_length))

    @abstractmethod
    def _new_call(self) -> Call:
        """What reads the next call."""
