"""Grammars of tool calls whose arguments are elements in elements."""

from collections.abc import Mapping

from enginebay import (
    CallGrammar,
    Grammar,
    Repeat,
    SchemaError,
    Schemas,
    Text,
    choice,
    optional,
    sequence,
)
from enginebay_parsers.arguments.argument_schema import ArgumentSchema
from enginebay_parsers.arguments.call_grammar import opened
from enginebay_parsers.arguments.members import Members, array_items, members, object_members
from enginebay_parsers.arguments.subschema import Branch, Subschema, branches, types_of
from enginebay_parsers.arguments.text_value import TextValue
from enginebay_parsers.stream.tag_patterns import fits

ITEM = "item"
_CONTAINERS = frozenset({"object", "array"})


def element_grammar(prefix: str, schemas: Schemas, *, parallel: bool) -> CallGrammar:
    """What `ElementCalls` reads as calls of these functions."""
    elements = _Elements(prefix)
    call = choice(*(elements.call(name, schema) for name, schema in schemas.items()))
    each = sequence(prefix, '<invoke name="', call, prefix, "</invoke>\n")
    inside = sequence("\n", each, *((Repeat(each),) if parallel else ()), prefix, "</tool_call>")
    start = f"{prefix}<tool_call>"
    return CallGrammar(sequence(start, inside), opened(Text(start), inside))


class _Elements:
    """Values as elements, and those that elements cannot say as JSON in one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def call(self, name: str, schema: Mapping[str, object]) -> Grammar:
        """A name and arguments."""
        if not fits("name", name):
            raise SchemaError("", f"the function {name!r} has a name that this syntax cannot write")
        part = Subschema(schema or {"type": "object"})
        ways = []
        for each in object_members(part):
            if each.further is not None and not each.each:
                raise each.further.error("members without names cannot be written in this syntax")
            ways.append(self._members(each, ArgumentSchema(schema), ()))
        return sequence(name, '">', choice(*ways))

    def _members(self, found: Members, read: ArgumentSchema, outer: tuple[str, ...]) -> Grammar:
        items = []
        for member in found.each:
            element = self._element(member.name, member.part, read.member(member.name), outer)
            items.append(element if member.required else optional(element))
        return sequence(*items)

    def _element(
        self, name: str, part: Subschema, read: ArgumentSchema, outer: tuple[str, ...]
    ) -> Grammar:
        """`outer`: what this stands in."""
        if not fits("key", name) or name[0] == "/" or name in ("invoke", "tool_call"):
            raise part.error("this name cannot be written in this syntax")
        types, ways = read.types, branches(part)
        value = TextValue(f"{self._prefix}</{name}>", (self._prefix,), empty_means=_CONTAINERS)
        found = [grammar for _, grammar in value.strings(part, types)]
        as_json = types_of(ways) - {"string"}
        for kind in sorted(_CONTAINERS & as_json & types):
            try:
                each = [self._inside(kind, way, read, outer) for way in ways if kind in way.types]
            except SchemaError:
                continue
            found += [sequence(inside, value.end) for inside in each]
            as_json -= {kind}
        found += [grammar for _, grammar in value.others(part, types, as_json)]
        if not found:
            raise part.error("no value that is valid here can be written in this syntax")
        return sequence(f"{self._prefix}<{name}>", choice(*found))

    def _inside(
        self, kind: str, way: Branch, read: ArgumentSchema, outer: tuple[str, ...]
    ) -> Grammar:
        """The elements of an object or an array; `SchemaError` for one that JSON has to say."""
        here = way.subschemas[-1]
        if here.pointer in outer:
            raise here.error("this is in itself")
        outer = (*outer, here.pointer)
        both = read.types >= _CONTAINERS
        if kind == "array":
            items = array_items(way)
            item = self._element(ITEM, items.part, read.item(), outer)
            return items.listed(item, "", least=int(both))
        found = members(way)
        if found.further is not None or not found.each or way.values() is not None:
            raise here.error("JSON can say more")
        if both and any(member.name == ITEM for member in found.each):
            raise here.error("this looks like an array")
        return self._members(found, read, outer)
