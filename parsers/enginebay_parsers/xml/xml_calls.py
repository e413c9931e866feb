"""Tool calls whose arguments stand between tags, one by one."""

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from enginebay import CallGrammar, Parser, Schemas, Span, ToolFormat
from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.arguments.typed_value import TypedValue
from enginebay_parsers.stream.json_end import JsonEnd
from enginebay_parsers.stream.json_scanner import json_string, skip_space
from enginebay_parsers.stream.state_machine import StateMachine
from enginebay_parsers.stream.tag_patterns import Found, Tag, TagPatterns, literal_start
from enginebay_parsers.xml.xml_grammar import XmlSyntax, xml_grammar


@dataclass(frozen=True, slots=True)
class XmlCalls(XmlSyntax, ToolFormat):
    """Calls of an `XmlSyntax`. `evidence`: a regular expression for templates that teach it."""

    evidence: str = field(kw_only=True)
    example: str = field(default="", kw_only=True)
    spans: tuple[Span, ...] = field(init=False)
    patterns: "_Patterns" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        call = literal_start(self.call)
        spans = []
        if self.block:
            spans.append(Span(self.block, self.block_end, opens_with=call[0]))
        if not self.block or self.may_lack_block:
            spans.append(Span(call, self.call_end, named=True))
        object.__setattr__(self, "spans", tuple(spans))
        object.__setattr__(self, "patterns", _Patterns(self))

    def matches(self, template: str) -> bool:
        """Whether the chat template looks like one that teaches this format."""
        return re.search(self.evidence, template) is not None

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice.

        A call is certain when the tag with its name is whole, or without a block when what must
        follow that tag does; until then what turns out to be none comes back as content. From then
        on the call stands. A value ends at its end tag if what follows can follow it: an end tag in
        front of anything else is part of the value, and so is one in a string of JSON. What is
        wrong between values ends the call and comes back as content, tags that end it dropped. In
        code, a call is text.
        """
        return _XmlCallsParser(self, schemas or {})

    def syntax(self) -> tuple[str, ...]:
        """The tags of blocks, calls and parameters."""
        parameters = (tag for each in self.parameters for tag in (each.start, each.end))
        return tuple(
            filter(None, (self.block, self.block_end, self.call, self.call_end, *parameters))
        )

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar:
        """How calls are written: parameters in the order of their schema, values as it says.

        A string is written as it is, and cannot hold what would end it; everything else is JSON.
        """
        return xml_grammar(self, schemas, parallel=parallel)


class _Patterns:
    """What may occur at each position."""

    def __init__(self, tags: XmlCalls) -> None:
        starts = tuple(dict.fromkeys(literal_start(each.start) for each in tags.parameters))
        call, call_end = literal_start(tags.call), tags.call_end
        behind_bare = (*starts, call_end)
        behind_call = behind_bare if tags.call.endswith("}") else ()
        behind_value = tuple(filter(None, (*starts, call_end, tags.block_end, tags.block, call)))
        end_of_call = Tag("call end", call_end)
        end_of_block = [Tag("block end", tags.block_end)] if tags.block else []
        openings = []
        if tags.block:
            openings.append(Tag("call", f"{tags.block}{{}}{tags.call}", followed_by=behind_call))
        if not tags.block or tags.may_lack_block:
            openings.append(Tag("call", tags.call, followed_by=behind_bare))
        self.outside = TagPatterns(*openings)
        self.outside_before_end = TagPatterns(*openings, end_of_call, *end_of_block)
        self.body = TagPatterns(
            *(Tag(f"parameter {n}", each.start) for n, each in enumerate(tags.parameters)),
            end_of_call,
            *end_of_block,
            *openings,
        )
        self.between = TagPatterns(
            Tag("call", f"{{}}{tags.call}", followed_by=behind_call),
            *(Tag("block end", f"{{}}{each.text}") for each in end_of_block),
        )
        torn_off = tuple(f"{call_end}{space}{tags.block_end}" for space in ("", "\n"))
        self.values = [
            TagPatterns(
                Tag("end", each.end, each.margin, followed_by=behind_value, or_end=True),
                *([Tag("end", "", each.margin, followed_by=torn_off)] if tags.block else ()),
            )
            for each in tags.parameters
        ]


class _State(Enum):
    OUTSIDE = auto()
    BODY = auto()
    VALUE = auto()
    BETWEEN = auto()


class _XmlCallsParser(StateMachine[_State]):
    """A parser for one choice."""

    def __init__(self, tags: XmlCalls, schemas: Schemas) -> None:
        super().__init__(
            _State.OUTSIDE,
            outside=_State.OUTSIDE,
            prose=(_State.OUTSIDE, _State.BETWEEN),
            marks=tags.patterns.outside_before_end.starts(),
            ends=(tags.call_end, tags.block_end),
        )
        self._tags = tags
        self._schemas = schemas
        self._schema = ArgumentSchema(None)
        self._arguments_end = ""
        self._parameter = 0
        self._margin = ""
        self._value = TypedValue(frozenset())
        self._end = JsonEnd(tags.patterns.body)

    def _steps(self) -> Mapping[_State, Callable[[bool], None]]:
        return {
            _State.OUTSIDE: self._read_outside,
            _State.BODY: self._read_body,
            _State.VALUE: self._read_value,
            _State.BETWEEN: self._read_between,
        }

    def _cut_off(self) -> None:
        if self._state is _State.VALUE:
            self._write(self._value.cut_off())

    def _read_outside(self, final: bool) -> None:
        patterns = self._tags.patterns
        expected = patterns.outside_before_end if self._end_is_due else patterns.outside
        found = expected.search(self._text, self._at, final=final)
        if found is None or (found.tag is None and final):
            self._deltas.content(self._rest())
            return
        self._deltas.content(self._text[self._at : found.start])
        self._at = found.start
        if found.tag is None:
            return
        if found.tag.role == "call":
            self._begin_call(found)
        else:
            self._at = found.end
            self._end_is_due = found.tag.role == "call end" and bool(self._tags.block)

    def _read_body(self, final: bool) -> None:
        self._at = skip_space(self._text, self._at)
        if self._at == len(self._text):
            return
        found = self._tags.patterns.body.match(self._text, self._at, final=final)
        if found is None:
            self._end_call(_State.OUTSIDE)
            self._end_is_due = True
        elif found.tag is None:
            if final:
                self._rest()
        elif found.tag.role.startswith("parameter"):
            self._at = found.end
            self._begin_value(int(found.tag.role.removeprefix("parameter ")), found.holes)
        elif found.tag.role == "call":
            self._end_call(_State.OUTSIDE)
            self._begin_call(found)
        else:
            self._at = found.end
            more = found.tag.role == "call end" and self._tags.block
            self._end_call(_State.BETWEEN if more else _State.OUTSIDE)

    def _read_between(self, final: bool) -> None:
        found = self._tags.patterns.between.match(self._text, self._at, final=final)
        if found is None:
            self._state = _State.OUTSIDE
            self._end_is_due = True
        elif found.tag is None:
            if final:
                self._rest()
        elif found.tag.role == "call":
            self._begin_call(found)
        else:
            self._at = found.end
            self._state = _State.OUTSIDE

    def _read_value(self, final: bool) -> None:
        if self._margin:
            self._at += self._text[self._at] == self._margin
            self._margin = ""
        if self._value.comes_whole:
            self._read_whole_value(final)
            return
        expected = self._tags.patterns.values[self._parameter]
        found = expected.search(self._text, self._at, final=final)
        if found is None or (found.tag is None and final):
            self._write(self._value.feed(self._rest()))
            return
        self._write(self._value.feed(self._text[self._at : found.start]))
        self._at = found.start
        if found.tag is not None:
            self._at = found.end
            self._write(self._value.end())
            self._state = _State.BODY

    def _read_whole_value(self, final: bool) -> None:
        end = self._end.find(self._text, self._at, final=final)
        if end is None:
            return
        self._write(self._value.feed(self._text[self._at : end[0]]))
        self._at = end[1]
        if end[1] > end[0] or end[0] < len(self._text):
            self._write(self._value.end())
            self._state = _State.BODY

    def _begin_call(self, found: Found) -> None:
        self._at = found.end
        name = self._unescaped(found.holes["name"])
        self._deltas.name(self._calls, name)
        self._calls += 1
        self._schema = ArgumentSchema(self._schemas.get(name))
        self._arguments_end = "{}"
        self._state = _State.BODY

    def _begin_value(self, parameter: int, holes: dict[str, str]) -> None:
        said = holes.get("string")
        is_text = None if said is None else said in ("true", "string")
        key = self._unescaped(holes.get("key", ""))
        schema = self._schema
        if key or self._arguments_end != "{}":
            schema = schema.member(key)
            self._write(f"{'{' if self._arguments_end == '{}' else ', '}{json_string(key)}: ")
            self._arguments_end = "}"
        else:
            self._arguments_end = ""
        self._value = TypedValue(schema.types, is_text=is_text)
        self._parameter = parameter
        self._end = JsonEnd(self._tags.patterns.values[parameter])
        self._margin = self._tags.parameters[parameter].margin
        self._state = _State.VALUE

    def _end_call(self, place: _State) -> None:
        self._write(self._arguments_end)
        self._end_is_due = False
        self._state = place

    def _write(self, arguments: str) -> None:
        self._deltas.arguments(self._calls - 1, arguments)

    def _rest(self) -> str:
        text = self._text[self._at :]
        self._at = len(self._text)
        return text

    def _unescaped(self, text: str) -> str:
        return html.unescape(text) if self._tags.entities else text
