"""Grammars of tool calls in the manner of Python."""

import re
from collections.abc import Mapping

from enginebay import (
    CallGrammar,
    Case,
    Grammar,
    Pattern,
    Repeat,
    SchemaError,
    Schemas,
    Text,
    choice,
    sequence,
)
from parsers.cases import opened
from parsers.literal_syntax import LiteralSyntax
from parsers.literal_value import BareValues, PythonValues
from parsers.members import object_members
from parsers.schema_part import SchemaPart
from parsers.tag_patterns import fits


def literal_grammar(tags: LiteralSyntax, schemas: Schemas, *, parallel: bool) -> CallGrammar:
    """What is read as calls of these functions."""
    calls = {name: _Call(tags, name, schema) for name, schema in schemas.items()}
    call = choice(*(sequence(each.head, each.rest) for each in calls.values()))
    several = parallel and not tags.one_a_block
    more = (Repeat(sequence(tags.between, call)),) if several else ()
    listed = sequence(tags.list_start, call, *more, tags.list_end)
    inside = sequence(listed, tags.end)
    block = sequence(tags.start, inside)
    forced = sequence(block, Repeat(block)) if parallel and tags.one_a_block else block
    cases = opened(Text(tags.start), inside)
    if not tags.may_be_bare:
        return CallGrammar(forced, cases)
    first = (
        Case(Pattern(rf"\s*\[\s*{re.escape(each.head)}"), sequence(each.rest, *more, tags.list_end))
        for each in calls.values()
    )
    return CallGrammar(choice(listed, forced), cases, tuple(first))


class _Call:
    """A call of one function: its `head` up to the bracket, and the `rest`."""

    def __init__(self, tags: LiteralSyntax, name: str, schema: Mapping[str, object]) -> None:
        if not fits("function", name):
            raise SchemaError("", f"the function {name!r} has a name that this syntax cannot write")
        self.head = tags.call.replace("{function}", name)
        escapes = tags.quotes[0].escapes
        ways = object_members(SchemaPart(schema or {"type": "object"}))
        arguments: list[Grammar] = []
        for each in ways:
            values = PythonValues() if escapes else BareValues(tags.quotes[0].mark)
            arguments.append(values.arguments(each))
        self.rest = sequence(choice(*arguments), tags.closer)
