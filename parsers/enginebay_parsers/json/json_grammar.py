"""The grammar of calls with JSON arguments between tags."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from enginebay import (
    CallGrammar,
    Case,
    Free,
    Grammar,
    Pattern,
    Repeat,
    Text,
    choice,
    optional,
    sequence,
)
from enginebay_parsers.json.syntax import Frame, Layout

_TAG_AT_END = re.compile(r"<[^<>]+>$")


@dataclass(frozen=True, slots=True)
class JsonGrammar:
    """Calls in a `Frame`, in the `Layout` of the models.

    `arguments`: the grammar of each function's arguments. `written`: a name as it is written.
    `bare_name`: a pattern for how a call without a start tag begins, up to a character after its
    name. `content_name`: a name that is none, but begins content.
    """

    frame: Frame
    layout: Layout
    arguments: Mapping[str, Grammar]
    written: Callable[[str], str]
    bare_name: Callable[[str], str]
    parallel: bool
    content_name: str = ""

    def whole(self) -> CallGrammar:
        """The grammar of answers that call."""
        return CallGrammar(
            sequence(self._header(), self._forced()),
            cases=tuple(self._cases()),
            first=tuple(self._first()),
            once=self._once,
        )

    @property
    def _once(self) -> bool:
        """Whether what follows a call could be read as another one, for want of an end tag."""
        return bool(self.frame.begins_with) and not self.frame.end

    def _header(self) -> Grammar:
        return optional(self.layout.header) if self.layout.header else Text("")

    def _forced(self) -> Grammar:
        frame = self.frame
        if frame.bare:
            return sequence(self.layout.lead, self._call, self._more_bare(), self.layout.tail)
        if frame.closing:
            return sequence(frame.opening, self._all_tagged(), frame.closing)
        return self._all_tagged()

    def _cases(self) -> Iterator[Case]:
        frame = self.frame
        if frame.opening and frame.closing:
            yield Case(Text(frame.opening), sequence(self._all_tagged(), frame.closing))
        for start in frame.starts:
            # Where text stands in front of a special token, only that can open a case.
            tag = _TAG_AT_END.search(start)
            rest = self._behind(start)
            if self._once:
                rest = sequence(rest, self._more_tagged())
            if self.content_name:
                rest = choice(rest, self._content(start, rest))
            opening = tag[0] if tag and not start.startswith("<") else start
            yield Case(Text(opening), rest)

    def _content(self, start: str, call: Grammar) -> Grammar:
        """Content under a name; a call may still follow it."""
        following = Text("") if self.parallel else Free((Case(Text(start), call),), once=True)
        return sequence(f"{self.content_name}\n", following)

    def _first(self) -> Iterator[Case]:
        if not self.frame.bare:
            return
        tail = optional(self.layout.tail) if self.layout.tail else Text("")
        for name, arguments in self.arguments.items():
            rest = sequence(self.layout.behind_name(arguments), self._more_bare(), tail)
            yield Case(Pattern(self.bare_name(name)), rest)

    @property
    def _call(self) -> Grammar:
        length = self.frame.id_length
        return choice(
            *(
                self.layout.call(self.written(name), arguments, length)
                for name, arguments in self.arguments.items()
            )
        )

    def _more(self, item: Grammar) -> Grammar:
        return Repeat(item) if self.parallel else Text("")

    def _more_bare(self) -> Grammar:
        between = self.layout.between
        return self._more(sequence(self.frame.start if between is None else between, self._call))

    def _behind(self, start: str) -> Grammar:
        """What follows a start tag, with its end tag."""
        layout = self.layout
        lead = layout.lead.removeprefix("[") if start.endswith("[") else layout.lead
        more = self._more(sequence(layout.between or "", self._call))
        return sequence(
            optional(lead) if lead.isspace() else lead,
            self._call,
            "" if layout.between is None else more,
            layout.tail,
            self.frame.end,
        )

    def _tagged(self) -> Grammar:
        frame = self.frame
        calls = choice(*(sequence(start, self._behind(start)) for start in frame.starts))
        if frame.opening and not frame.closing:
            return sequence(optional(f"{frame.opening}{self.layout.gap}"), calls)
        return calls

    def _all_tagged(self) -> Grammar:
        return sequence(self._tagged(), self._more_tagged())

    def _more_tagged(self) -> Grammar:
        if self.layout.between is not None:
            return Text("")
        return self._more(sequence(self.layout.gap, self._tagged()))
