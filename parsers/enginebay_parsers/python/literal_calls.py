"""Tool calls in Python syntax: a name, and arguments in brackets."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from enginebay import CallGrammar, Parser, Schemas, Span, ToolFormat
from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.python.literal_grammar import LiteralSyntax, literal_grammar
from enginebay_parsers.stream.json_scanner import skip
from enginebay_parsers.stream.literal_scanner import LiteralScanner
from enginebay_parsers.stream.state_machine import StateMachine
from enginebay_parsers.stream.tag_patterns import Found, Tag, TagPatterns

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class LiteralCalls(LiteralSyntax, ToolFormat):
    """Calls of a `LiteralSyntax`. `evidence`: a regular expression for templates that teach it."""

    evidence: str = field(kw_only=True)
    example: str = field(default="", kw_only=True)
    spans: tuple[Span, ...] = field(init=False)
    patterns: "_Patterns" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", (Span(self.start, self.end),))
        object.__setattr__(self, "patterns", _Patterns(self))

    def matches(self, template: str) -> bool:
        """Whether the chat template looks like one that teaches this format."""
        return re.search(self.evidence, template) is not None

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice.

        A call is certain when its bracket opens, and without the tags only if the function is
        offered; until then what turns out to be none comes back as content. From then on the call
        stands: where its arguments are no literals any more it ends, as it is, and the rest comes
        back as content, the tag that ends the block dropped. A call without tags and list is one
        only if it is the whole answer, with nothing but literals: the end of the answer shows it.
        Arguments without a name get theirs from the schema, in its order.
        """
        return _LiteralCallsParser(self, schemas)

    def syntax(self) -> tuple[str, ...]:
        """The tags, the brackets, and the quotes of strings."""
        quotes = (quote.mark for quote in self.quotes)
        return (self.start, self.end, self.call, self.closer, self.separator, *quotes)

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar:
        """How calls are written: arguments by name, in the order of their schema."""
        return literal_grammar(self, schemas, parallel=parallel)


class _Patterns:
    """What may occur at each position."""

    def __init__(self, tags: LiteralCalls) -> None:
        openings = [
            Tag("call", f"{tags.start}{{}}{tags.call}"),
            Tag("call in list", f"{tags.start}{{}}[{{}}{tags.call}"),
        ]
        end = Tag("end", f"{{}}{tags.end}")
        more = [Tag("call", f"{{}}{mark}{{}}{tags.call}") for mark in ("", ",", ";")]
        self.bare = TagPatterns(Tag("call in list", f"[{{}}{tags.call}"))
        self.outside = TagPatterns(*openings)
        self.outside_before_end = TagPatterns(*openings, Tag("end", tags.end))
        self.between = TagPatterns(end, *more)
        self.in_list = TagPatterns(
            end, Tag("end of list", "{}]"), Tag("end of list", "{},{}]"), *more
        )
        self.behind_list = TagPatterns(end)


class _State(Enum):
    START = auto()
    LONE = auto()
    OUTSIDE = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()


class _LiteralCallsParser(StateMachine[_State]):
    """A parser for one choice."""

    def __init__(self, tags: LiteralCalls, schemas: Schemas | None) -> None:
        super().__init__(
            _State.START if tags.may_be_bare else _State.OUTSIDE,
            outside=_State.OUTSIDE,
            prose=(_State.START, _State.OUTSIDE, _State.BETWEEN),
            marks=tags.patterns.outside_before_end.starts(),
            ends=(tags.end,),
        )
        self._tags = tags
        self._schemas = schemas
        self._arguments = LiteralScanner(tags.quotes)
        self._behind_call = tags.patterns.between
        self._lone, self._read_up_to = "", 0  # a call without a list, and how far it has been read

    def _steps(self) -> Mapping[_State, Callable[[bool], None]]:
        return {
            _State.START: self._read_start,
            _State.LONE: self._read_lone,
            _State.OUTSIDE: self._read_outside,
            _State.ARGUMENTS: self._read_arguments,
            _State.BETWEEN: self._read_between,
        }

    def _cut_off(self) -> None:
        if self._state is _State.ARGUMENTS:
            self._arguments.finish()
            self._take_arguments()

    def _read_start(self, final: bool) -> None:
        end = skip(_SPACE, self._text, self._at)
        self._deltas.content(self._text[self._at : end])
        self._at = end
        if end == len(self._text):
            return
        if self._may_be_lone(final=final):
            return
        found = self._tags.patterns.bare.match(self._text, end, final=final)
        if found is None or (found.tag is None and final):
            self._state = _State.OUTSIDE
        elif found.tag is not None:
            self._state = _State.OUTSIDE
            if self._schemas is None or found.holes["function"] in self._schemas:
                self._begin_call(found, found.tag.role)

    def _may_be_lone(self, *, final: bool) -> bool:
        """Whether the text is, or may become, a call of an offered function without a list."""
        for name in self._schemas or ():
            head = self._tags.call.replace("{function}", name)
            if self._text.startswith(head, self._at):
                self._state, self._lone, self._read_up_to = _State.LONE, name, len(head)
                self._arguments = self._new_arguments(name)
                return True
            if not final and head.startswith(self._text[self._at :]):
                return True
        return False

    def _read_lone(self, final: bool) -> None:
        """A call by itself is one if it ends with its bracket and nothing stands behind it."""
        arguments = self._arguments
        end = arguments.feed(self._text, self._at + self._read_up_to, final=final)
        self._read_up_to = end - self._at
        more = arguments.complete and self._text[end:].strip()
        if final and arguments.complete and arguments.exact and not more:
            self._deltas.name(0, self._lone)
            self._deltas.arguments(0, arguments.take())
            self._at = len(self._text)
        elif final or more or arguments.failed:
            self._state = _State.OUTSIDE

    def _read_outside(self, final: bool) -> None:
        patterns = self._tags.patterns
        expected = patterns.outside_before_end if self._end_is_due else patterns.outside
        found = expected.search(self._text, self._at, final=final)
        if found is None or (found.tag is None and final):
            self._deltas.content(self._text[self._at :])
            self._at = len(self._text)
            return
        self._deltas.content(self._text[self._at : found.start])
        self._at = found.start
        if found.tag is None:
            return
        if found.tag.role == "end":
            self._at = found.end
            self._end_is_due = False
        else:
            self._begin_call(found, found.tag.role)

    def _read_arguments(self, final: bool) -> None:
        self._at = self._arguments.feed(self._text, self._at, final=final)
        self._take_arguments()
        if self._arguments.complete:
            self._state = _State.BETWEEN
        elif self._arguments.failed:
            self._state = _State.OUTSIDE
            self._end_is_due = True

    def _read_between(self, final: bool) -> None:
        found = self._behind_call.match(self._text, self._at, final=final)
        if found is None:
            self._state = _State.OUTSIDE
            self._end_is_due = True
        elif found.tag is None:
            self._at = len(self._text) if final else self._at
        elif found.tag.role == "end of list":
            self._at = found.end
            self._behind_call = self._tags.patterns.behind_list
        elif found.tag.role == "end":
            self._at = found.end
            self._state = _State.OUTSIDE
        else:
            self._begin_call(found, found.tag.role)

    def _begin_call(self, found: Found, role: str) -> None:
        """Reads the call whose bracket opens at the end of the tag."""
        if self._state is _State.OUTSIDE:
            patterns, in_list = self._tags.patterns, role == "call in list"
            self._behind_call = patterns.in_list if in_list else patterns.between
        self._at = found.end
        self._state = _State.ARGUMENTS
        self._end_is_due = False
        name = found.holes["function"]
        self._arguments = self._new_arguments(name)
        self._deltas.name(self._calls, name)
        self._calls += 1
        self._take_arguments()

    def _new_arguments(self, name: str) -> LiteralScanner:
        tags = self._tags
        names = ArgumentSchema((self._schemas or {}).get(name)).members
        return LiteralScanner.inside(tags.quotes, tags.closer, tags.separator, names)

    def _take_arguments(self) -> None:
        self._deltas.arguments(self._calls - 1, self._arguments.take())
