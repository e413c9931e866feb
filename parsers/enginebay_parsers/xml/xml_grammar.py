"""Grammars of tool calls whose arguments stand between tags, one by one."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from enginebay import (
    CallGrammar,
    Grammar,
    Pattern,
    Repeat,
    SchemaError,
    Schemas,
    Text,
    Until,
    choice,
    optional,
    sequence,
)
from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.arguments.call_grammar import opened
from enginebay_parsers.arguments.members import Members, object_members
from enginebay_parsers.arguments.subschema import Subschema
from enginebay_parsers.arguments.text_value import TextValue
from enginebay_parsers.stream.tag_patterns import fits, literal_start, pieces

FURTHER_KEY = "[A-Za-z_][A-Za-z0-9_.-]{0,60}"
_NUMBER = Pattern("[1-9][0-9]?")
_MARKUP = ("<", "&", "\n")


@dataclass(frozen=True, slots=True)
class Parameter:
    """`start`, value, `end`.

    `start` has a hole `{key}`; without one, the value is all of the arguments. A hole `{string}`
    says whether the value is text: `true` or `string`. `margin`: a character that templates write
    between the tags and the value, which is not part of it.
    """

    start: str
    end: str
    margin: str = ""


@dataclass(frozen=True, slots=True)
class XmlSyntax:
    """`block`, calls, `block_end`, where a call is `call`, parameters, `call_end`.

    Tags are written as in `tag_patterns`; the one of a call has a hole `{name}`. Without a
    `block`, calls stand by themselves. `may_lack_block`: models forget it. `entities`: names and
    keys are escaped as in XML. `spaces`: what models write between tags, one of these.
    `one_a_block`: they write a block for each call. `names_types`: a hole `{string}` holds the
    name of the type.
    """

    call: str
    call_end: str
    parameters: tuple[Parameter, ...]
    block: str = ""
    block_end: str = ""
    may_lack_block: bool = False
    entities: bool = False
    spaces: tuple[str, ...] = ("\n",)
    one_a_block: bool = False
    names_types: bool = False


def xml_grammar(tags: XmlSyntax, schemas: Schemas, *, parallel: bool) -> CallGrammar:
    """What is read as calls of these functions."""
    call = _Calls(tags, schemas)
    start = Text(literal_start(tags.call))
    gap = choice(*tags.spaces)
    more = (Repeat(sequence(gap, start, call.rest())),) if parallel else ()
    if not tags.block:
        return CallGrammar(sequence(start, call.rest(), *more), opened(start, call.rest()))
    within = () if tags.one_a_block else more
    inside = sequence(gap, start, call.rest(), *within, gap, tags.block_end)
    block = sequence(tags.block, inside)
    forced = sequence(block, Repeat(sequence(gap, block))) if parallel else block
    cases = opened(Text(tags.block), inside)
    if tags.may_lack_block:
        cases += opened(start, call.rest())
    return CallGrammar(forced, cases)


class _Calls:
    """Calls of some functions, without what all calls begin with."""

    def __init__(self, tags: XmlSyntax, schemas: Schemas) -> None:
        self._tags = tags
        self._gap = choice(*tags.spaces)
        keyed = [each for each in tags.parameters if "{key}" in each.start]
        self._says_type = any("{string}" in each.start for each in keyed)
        self._texts = keyed[:1] if self._says_type else keyed
        self._others = keyed[0] if self._says_type else keyed[-1]
        self._rest = choice(*(self._call(name, schema) for name, schema in schemas.items()))

    def rest(self) -> Grammar:
        return self._rest

    def _call(self, name: str, schema: Mapping[str, object]) -> Grammar:
        written = self._escaped(name)
        if not fits("name", written):
            raise SchemaError("", f"the function {name!r} has a name that this syntax cannot write")
        holes: dict[str, Grammar | str] = {"name": written, "index": _NUMBER, "": ""}
        tag = pieces(self._tags.call)[1:]
        head = [holes[text] if is_hole else text for text, is_hole in tag]
        part = Subschema(schema or {"type": "object"})
        arguments = [self._arguments(part, members) for members in object_members(part)]
        return sequence(*head, choice(*arguments), self._gap, self._tags.call_end)

    def _arguments(self, part: Subschema, members: Members) -> Grammar:
        read = ArgumentSchema(part.root)
        items: list[Grammar] = []
        for member in members.each:
            key = self._escaped(member.name)
            if not fits("key", key):
                raise member.part.error("this name cannot be written in this syntax")
            types = read.member(member.name).types
            written = self._parameter(member.part, types, key)
            items.append(written if member.required else optional(written))
        if members.further is not None:
            types = ArgumentSchema(members.further.schema, part.root).types
            names = tuple(re.escape(self._escaped(member.name)) for member in members.each)
            written = self._parameter(members.further, types, None, names)
            items.append(Repeat(written, 0, members.most_further))
        return sequence(*items)

    def _parameter(
        self, part: Subschema, types: frozenset[str], key: str | None, none: tuple[str, ...] = ()
    ) -> Grammar:
        """A parameter; without a `key`, one with any name but those that `none` match."""
        ways: list[Grammar] = []
        for number, parameter in enumerate(self._texts):
            value = self._value(parameter, *(_MARKUP if number else ()))
            ways += [
                sequence(self._start(parameter, key, type, none), parameter.margin, grammar)
                for type, grammar in value.strings(part, types)
            ]
        value = self._value(self._others)
        ways += [
            sequence(self._start(self._others, key, type, none), self._others.margin, grammar)
            for type, grammar in value.others(part, types)
        ]
        if not ways:
            raise part.error("no value that is valid here can be written in this syntax")
        return sequence(self._gap, choice(*ways))

    def _value(self, parameter: Parameter, *left_out: str) -> TextValue:
        torn = [f"{self._tags.call_end}{space}{self._tags.block_end}" for space in ("", "\n")]
        return TextValue(
            f"{parameter.margin}{parameter.end}",
            (parameter.end, *(torn if self._tags.block else ()), *left_out),
            says_type=self._says_type,
        )

    def _start(
        self, parameter: Parameter, key: str | None, type: str, none: tuple[str, ...]
    ) -> Grammar:
        says = type if self._tags.names_types else str(type == "string").lower()
        tag = pieces(parameter.start.replace("{string}", says))
        items: list[Grammar | str] = []
        for (text, is_hole), (before, is_key) in zip(tag, [("", False), *tag], strict=False):
            if not is_hole:
                behind_key = is_key and before == "key" and key is None
                items.append(Until(text, (FURTHER_KEY,), none) if behind_key else text)
            elif text == "":
                items.append(self._gap)
            elif key is not None:
                items.append(key)
        return sequence(*items)

    def _escaped(self, text: str) -> str:
        return html.escape(text) if self._tags.entities else text
