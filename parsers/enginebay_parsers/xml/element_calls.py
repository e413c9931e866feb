"""Tool calls whose arguments are elements in elements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from enginebay import CallGrammar, Parser, Schemas, Span, ToolFormat
from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.arguments.typed_value import TypedValue
from enginebay_parsers.stream.json_scanner import json_string
from enginebay_parsers.stream.state_machine import StateMachine
from enginebay_parsers.stream.tag_patterns import Found, Tag, TagPatterns
from enginebay_parsers.xml.element_grammar import ITEM, element_grammar


@dataclass(frozen=True, slots=True)
class ElementCalls(ToolFormat):
    """`<tool_call>`, calls, `</tool_call>`, where a call is `<invoke name="N">`, elements,
    `</invoke>`, and every tag stands after the `prefix`, which occurs nowhere else.

    An element of an object is named like the member, one of an array `item`. Leaves are text.
    """

    prefix: str
    example: str = ""
    spans: tuple[Span, ...] = field(init=False)
    patterns: "_Patterns" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        span = Span(f"{self.prefix}<tool_call>", f"{self.prefix}</tool_call>")
        object.__setattr__(self, "spans", (span,))
        object.__setattr__(self, "patterns", _Patterns(self.prefix))

    def matches(self, template: str) -> bool:
        """Whether the prefix occurs in the chat template."""
        return self.prefix in template

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice.

        A call is certain when the tag with its name is whole; until then what turns out to be none
        comes back as content. From then on the call stands: an element that ends without those in
        it ends them too, and what belongs to no element ends the call and comes back as content.
        """
        return _ElementCallsParser(self.patterns, schemas or {})

    def syntax(self) -> tuple[str, ...]:
        """The tags of blocks and calls, with their prefix."""
        names = ("<tool_call>", "</tool_call>", '<invoke name="', "</invoke>")
        return tuple(f"{self.prefix}{name}" for name in names)

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar:
        """How calls are written: elements in the order of the schema, leaves as it says.

        What elements cannot say, such as members of any name, is JSON in an element. A string is
        written as it is, and cannot hold the prefix of tags.
        """
        return element_grammar(self.prefix, schemas, parallel=parallel)


class _Patterns:
    """What may occur at each position."""

    def __init__(self, prefix: str) -> None:
        invoke = f'{prefix}<invoke name="{{name}}">'
        opening = Tag("call", f"{prefix}<tool_call>{{}}{invoke}")
        end = Tag("end", f"{prefix}</tool_call>")
        end_of_call = Tag("end of call", f"{prefix}</invoke>")
        self.outside = TagPatterns(opening)
        self.outside_before_end = TagPatterns(opening, end_of_call, end)
        self.between = TagPatterns(Tag("call", f"{{}}{invoke}"), Tag("end", f"{{}}{end.text}"))
        self.tags = TagPatterns(
            end_of_call,
            end,
            opening,
            Tag("call", invoke),
            Tag("element end", f"{prefix}</{{key}}>"),
            Tag("element", f"{prefix}<{{key}}>"),
        )


class _State(Enum):
    OUTSIDE = auto()
    CALL = auto()
    BETWEEN = auto()


class _Kind(Enum):
    UNKNOWN = auto()
    LEAF = auto()
    OBJECT = auto()
    ARRAY = auto()


class _Element:
    """An element that is open, and the JSON that is certain of it."""

    def __init__(self, name: str, schema: ArgumentSchema, kind: _Kind = _Kind.UNKNOWN) -> None:
        self.name = name
        self.kind = kind
        self._schema = schema
        self._types = schema.types
        self._leaf = TypedValue(self._types)
        self._children = 0
        self._space: list[str] = []
        if kind is _Kind.UNKNOWN and self._types == {"string"}:
            self.kind = _Kind.LEAF

    def text(self, text: str) -> str | None:
        """The JSON of more text; None where no text can stand."""
        if self.kind is _Kind.UNKNOWN:
            self._space.append(text)
            if not text.strip():
                return ""
            self.kind = _Kind.LEAF
            text = "".join(self._space)
        if self.kind is _Kind.LEAF:
            return self._leaf.feed(text)
        return None if text.strip() else ""

    def child(self, name: str) -> "tuple[str, _Element] | None":
        """The JSON in front of an element in this one, and that element."""
        if self.kind is _Kind.LEAF:
            return None
        head = ", "
        if self.kind is _Kind.UNKNOWN or not self._children:
            is_object = self.kind is _Kind.OBJECT or "object" in self._types or name != ITEM
            if "array" in self._types and name == ITEM:
                is_object = False
            self.kind = _Kind.OBJECT if is_object else _Kind.ARRAY
            head = "{" if is_object else "["
        self._children += 1
        if self.kind is _Kind.ARRAY:
            return head, _Element(name, self._schema.item())
        return f"{head}{json_string(name)}: ", _Element(name, self._schema.member(name))

    def end(self) -> str:
        """The rest of the JSON."""
        if self.kind is _Kind.UNKNOWN:
            for type, empty in (("object", "{}"), ("array", "[]")):
                if type in self._types:
                    return empty
            return self._leaf.feed("".join(self._space)) + self._leaf.end()
        if self.kind is _Kind.LEAF:
            return self._leaf.end()
        empty, closer = ("{}", "}") if self.kind is _Kind.OBJECT else ("[]", "]")
        return closer if self._children else empty

    def cut_off(self) -> str:
        """What has come of an element whose end never comes."""
        return self._leaf.cut_off() if self.kind is _Kind.LEAF else ""


class _ElementCallsParser(StateMachine[_State]):
    """A parser for one choice."""

    def __init__(self, patterns: _Patterns, schemas: Schemas) -> None:
        super().__init__(
            _State.OUTSIDE,
            outside=_State.OUTSIDE,
            prose=(_State.OUTSIDE, _State.BETWEEN),
            marks=patterns.outside_before_end.starts(),
            ends=patterns.outside_before_end.starts()[1:],
        )
        self._patterns = patterns
        self._schemas = schemas
        self._open: list[_Element] = []

    def _steps(self) -> Mapping[_State, Callable[[bool], None]]:
        return {
            _State.OUTSIDE: self._read_outside,
            _State.CALL: self._read_call,
            _State.BETWEEN: self._read_between,
        }

    def _cut_off(self) -> None:
        if self._state is _State.CALL:
            self._write(self._open[-1].cut_off())

    def _read_outside(self, final: bool) -> None:
        patterns = self._patterns
        expected = patterns.outside_before_end if self._end_is_due else patterns.outside
        found = expected.search(self._text, self._at, final=final)
        self._deltas.content(self._text_before(found, final))
        if found is None or found.tag is None:
            return
        if found.tag.role == "call":
            self._begin_call(found)
        else:
            self._at = found.end
            self._end_is_due = found.tag.role != "end"

    def _read_call(self, final: bool) -> None:
        found = self._patterns.tags.search(self._text, self._at, final=final)
        start = self._at
        text = self._text_before(found, final and self._open[-1].kind is _Kind.LEAF)
        json_text = self._open[-1].text(text) if text else ""
        if json_text is None:
            self._at = start + len(text) - len(text.lstrip())
            self._end_elements(self._open)
            self._state = _State.OUTSIDE
            self._end_is_due = True
            return
        self._write(json_text)
        if found is None:
            return
        if found.tag is None:
            self._at = len(self._text) if final else self._at
            return
        self._at = found.end
        self._read_tag(found, found.tag.role)

    def _read_tag(self, found: Found, role: str) -> None:
        name = found.holes.get("key", "")
        if role == "element":
            child = self._open[-1].child(name)
            if child is not None:
                self._write(child[0])
                self._open.append(child[1])
                return
        elif role == "element end":
            depths = range(len(self._open) - 1, 0, -1)
            depth = next((n for n in depths if self._open[n].name == name), 0)
            if depth:
                self._end_elements(self._open[depth:])
                return
        self._end_elements(self._open)
        self._state = _State.OUTSIDE
        if role == "end of call":
            self._state = _State.BETWEEN
        elif role == "call":
            self._begin_call(found)
        elif role != "end":
            self._deltas.content(self._text[found.start : found.end])
            self._end_is_due = True

    def _read_between(self, final: bool) -> None:
        found = self._patterns.between.match(self._text, self._at, final=final)
        if found is None:
            self._state = _State.OUTSIDE
            self._end_is_due = True
        elif found.tag is None:
            self._at = len(self._text) if final else self._at
        elif found.tag.role == "call":
            self._begin_call(found)
        else:
            self._at = found.end
            self._state = _State.OUTSIDE

    def _begin_call(self, found: Found) -> None:
        self._at = found.end
        self._state = _State.CALL
        self._end_is_due = False
        name = found.holes["name"]
        schema = ArgumentSchema(self._schemas.get(name))
        self._deltas.name(self._calls, name)
        self._calls += 1
        self._open = [_Element("", schema, _Kind.OBJECT)]

    def _end_elements(self, elements: Sequence[_Element]) -> None:
        self._write("".join(element.end() for element in reversed(elements)))
        del self._open[len(self._open) - len(elements) :]

    def _text_before(self, found: Found | None, all_of_it: bool) -> str:
        """The text in front of a tag; all of it if what may become a tag will not any more."""
        end = len(self._text) if found is None else found.start
        if found is not None and found.tag is None and all_of_it:
            end = len(self._text)
        text = self._text[self._at : end]
        self._at = end
        return text

    def _write(self, arguments: str) -> None:
        self._deltas.arguments(self._calls - 1, arguments)
