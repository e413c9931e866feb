"""Grammars of literals, as `LiteralScanner` reads them back."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from enginebay import Grammar, Pattern, SchemaError, Until, choice, sequence
from enginebay_parsers.arguments.members import Entry, Members, array_items, listed, members
from enginebay_parsers.arguments.subschema import Branch, Subschema, branches, types_of
from enginebay_parsers.arguments.text_rules import TextRules, text_rules
from enginebay_parsers.stream.literal_words import scalar

_SCALARS = frozenset({"number", "integer", "boolean", "null"})
_NAME = "[A-Za-z_][A-Za-z0-9_]{0,60}"
_KEYWORD = re.compile(r"[^\W\d]\w{0,255}")
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = ("None", "True", "False", "null", "true", "false")
# How often a schema may stand in itself: what is deeper is left out.
_DEEPEST = 3
_MOST_VALUES = 2000


class _TooDeep(SchemaError):
    """A schema is nested in itself too deeply."""


class Values(ABC):
    """How keys and values are written; `equals` comes between them."""

    equals: str
    comma: str

    @abstractmethod
    def key(self, name: str) -> str | None:
        """The name of an argument; None if it cannot be written."""

    @abstractmethod
    def value(self, part: Subschema) -> Grammar:
        """Values that are valid against a schema."""

    def arguments(self, found: Members) -> Grammar:
        """The text in the brackets of a call."""
        entries = []
        for member in found.each:
            key = self.key(member.name)
            if key is None:
                raise member.part.error("this name cannot be written in this syntax")
            try:
                value = self.value(member.part)
            except _TooDeep:
                if member.required:
                    raise
                continue
            entries.append(Entry(sequence(key, self.equals, value), member.required))
        further = None
        if found.further is not None:
            names = (re.escape(member.name) for member in found.each)
            key_and_equals = Until(self.equals, (_NAME,), (*names, *_WORDS))
            further = sequence(key_and_equals, self.value(found.further))
        return listed(entries, self.comma, further, found.most_further)


class PythonValues(Values):
    """Values as Python writes them, or as JSON does, of which the scanner reads both."""

    equals, comma = "=", ", "

    def key(self, name: str) -> str | None:
        return name if _KEYWORD.fullmatch(name) else None

    def value(self, part: Subschema) -> Grammar:
        ways = branches(part)
        try:
            own = [*self._strings(text_rules(ways)), *self._words(ways)]
        except SchemaError:  # which JSON may be able to say
            own = []
        return choice(part.json(types_of(ways)), *own)

    def _strings(self, each: Iterable[TextRules]) -> Iterable[Grammar]:
        for rules in each:
            if rules.values is not None:
                written = [text for value in rules.values if (text := _quoted(value))]
                if written:
                    yield Pattern("|".join(map(re.escape, written)))
            elif rules.patterns:
                yield sequence("'", Until("'", rules.patterns, (r"(?s:.*)[\\\x00-\x1f](?s:.*)",)))
            else:
                yield Pattern(r"'(?:[^'\\\x00-\x1f]|\\['\\nt])*'")

    def _words(self, ways: Iterable[Branch]) -> Iterable[Grammar]:
        for way in ways:
            way.refuse("not", "if", "$dynamicRef", "$recursiveRef")
            values = way.values()
            for name, type, value in (
                ("None", "null", None),
                ("True", "boolean", True),
                ("False", "boolean", False),
            ):
                if type in way.types and (values is None or any(v is value for v in values)):
                    yield Pattern(name)


class BareValues(Values):
    """Values with bare keys, and strings without escapes between two `marks`."""

    equals, comma = ":", ","

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._outer: list[Subschema] = []
        self._values = 0

    def key(self, name: str) -> str | None:
        if _BARE_KEY.fullmatch(name) and scalar(name) is None:
            return name
        return None if self._mark in name else f"{self._mark}{name}{self._mark}"

    def value(self, part: Subschema) -> Grammar:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise part.error("there are too many values in values")
        ways = branches(part)
        scalars = types_of(ways) & _SCALARS
        found: list[Grammar] = [part.json(scalars)] if scalars else []
        found += self._strings(text_rules(ways))
        too_deep: SchemaError | None = None
        for way in ways:
            for kind in sorted(way.types & {"object", "array"}):
                try:
                    found.append(self._nested(kind, way))
                except _TooDeep as error:
                    too_deep = error
        if not found:
            raise too_deep or part.error("no value that is valid here can be written")
        return choice(*found)

    def _strings(self, each: Iterable[TextRules]) -> Iterable[Grammar]:
        for rules in each:
            patterns = rules.patterns
            if rules.values is not None:
                values = [value for value in rules.values if self._mark not in value]
                patterns = ("|".join(map(re.escape, values)),)
                if not values:
                    continue
            yield sequence(self._mark, Until(self._mark, patterns))

    def _nested(self, kind: str, way: Branch) -> Grammar:
        here = way.subschemas[-1]
        if self._outer.count(here) >= _DEEPEST:
            raise _TooDeep(here.pointer, "this must stand in itself without end")
        self._outer.append(here)
        try:
            if kind == "object":
                return sequence("{", self.arguments(members(way)), "}")
            return self._array(way)
        finally:
            self._outer.pop()

    def _array(self, way: Branch) -> Grammar:
        items = array_items(way)
        try:
            item = self.value(items.part)
        except _TooDeep:
            if items.least:
                raise
            return sequence("[]")
        return sequence("[", items.listed(item, self.comma), "]")


def _quoted(text: str) -> str | None:
    """The text between quotes; None if it has characters that would need rare escapes."""
    text = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return None if re.search(r"[\x00-\x1f]", text) else f"'{text}'"
