"""Grammars of tool calls in Python syntax."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
from enginebay_parsers.arguments.call_grammar import opened
from enginebay_parsers.arguments.members import object_members
from enginebay_parsers.arguments.subschema import Subschema
from enginebay_parsers.python.literal_value import BareValues, PythonValues
from enginebay_parsers.stream.literal_words import PYTHON_QUOTES, Quote
from enginebay_parsers.stream.tag_patterns import fits


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """`start`, one or more calls or a list of them, `end`; a call is `call`, arguments, `closer`.

    `call` is written as in `tag_patterns`, with a hole `{function}`. `separator` stands between
    the name and the value of an argument. `may_be_bare`: a list of calls may also stand without
    the tags, if the answer begins with it. `list_start`, `between` and `list_end`: what models
    write around calls; with `one_a_block`, each stands between the tags by itself.
    """

    start: str
    end: str
    call: str = "{function}("
    closer: str = ")"
    separator: str = "="
    quotes: tuple[Quote, ...] = PYTHON_QUOTES
    may_be_bare: bool = False
    list_start: str = "["
    between: str = ", "
    list_end: str = "]"
    one_a_block: bool = False


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
        ways = object_members(Subschema(schema or {"type": "object"}))
        arguments: list[Grammar] = []
        for each in ways:
            values = PythonValues() if escapes else BareValues(tags.quotes[0].mark)
            arguments.append(values.arguments(each))
        self.rest = sequence(choice(*arguments), tags.closer)
