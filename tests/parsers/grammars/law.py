"""The law of `ToolFormat.grammar`: what keeps to it is read as calls, and these are right."""

import json
import random
import re
from collections.abc import Iterable, Sequence

import jsonschema

from enginebay import ContentDelta, Grammar, Schemas, ToolCallDelta, ToolFormat
from enginebay.contract.grammar import Free
from tests.parsers.grammars.walk import Walk, Walker

Call = tuple[str, str]
SEEDS = range(50)

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 10},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "name": {"type": ["string", "null"]}},
            "required": ["lat"],
            "additionalProperties": False,
        },
    },
    "required": ["city"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "kind": {"const": 'a "quoted"\nline'},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["kind"],
            "additionalProperties": False,
        }
    },
    "properties": {"名前": {"type": "string", "maxLength": 8}, "node": {"$ref": "#/$defs/node"}},
    "required": ["名前", "node"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
OPEN = {
    "type": "object",
    "properties": {"key": {"type": "string", "enum": ["</tool_call>", "é🙂", "a`b", ""]}},
    "additionalProperties": {"type": "integer"},
}
SCHEMAS: Schemas = {"weather": WEATHER, "ns.nested-1": NESTED, "now": NOTHING, "open_set": OPEN}


def calls(tools: ToolFormat, schemas: Schemas, text: str, seed: int = 0) -> tuple[list[Call], str]:
    """Name and arguments of each call, and the content, of a text that comes in random pieces."""
    parser, chance = tools.parser(schemas), random.Random(seed)
    parts = []
    while text:
        size = chance.randint(1, 12)
        parts += parser.feed(text[:size])
        text = text[size:]
    parts += parser.finish()
    found: list[Call] = []
    content = ""
    for part in parts:
        if isinstance(part, ToolCallDelta):
            if part.name is not None:
                found.append((part.name, ""))
            name, arguments = found[part.index]
            found[part.index] = (name, arguments + part.arguments)
        elif isinstance(part, ContentDelta):
            content += part.text
    return found, content


def assert_calls(found: Iterable[Call], schemas: Schemas) -> None:
    """Each names a function and has arguments that are valid against its schema."""
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), schemas[name])


def forced(tools: ToolFormat, schemas: Schemas, *, parallel: bool) -> Grammar:
    """The grammar of an answer that calls."""
    grammar = tools.grammar(schemas, parallel=parallel)
    assert grammar is not None
    return grammar.forced


def free(tools: ToolFormat, schemas: Schemas, *, parallel: bool) -> Grammar:
    """The grammar of an answer that may call."""
    grammar = tools.grammar(schemas, parallel=parallel)
    assert grammar is not None
    return Free(grammar.cases, grammar.first, once=grammar.once or not parallel)


def assert_forced(
    tools: ToolFormat,
    tags: Sequence[str],
    schemas: Schemas = SCHEMAS,
    seeds: range = SEEDS,
    *,
    header: str = "",
) -> None:
    """Forced answers are calls and nothing else, but for a header for the reasoning parser."""
    count = 0
    for seed, walk, parallel in _walks(tools, tags, schemas, seeds, is_free=False):
        if walk.ended:
            found, content = calls(tools, schemas, walk.text, seed)
            assert found, walk.text
            assert parallel or len(found) == 1, walk.text
            assert not content.removeprefix(header).strip(), (walk.text, content)
            _assert_valid(found, schemas, walk)
            count += 1
    assert count >= len(seeds) * 0.7, f"only {count} walks ended"


def assert_free(
    tools: ToolFormat,
    tags: Sequence[str],
    schemas: Schemas = SCHEMAS,
    seeds: range = SEEDS,
    *,
    words: Sequence[str] = (),
    dropped: str = "(?!)",
) -> None:
    """Answers that may call have right calls, and one at most if that is all they may.

    `words`: texts that begin calls and are no tags. `dropped`: what of text is no content.
    """
    ended = calling = 0
    for seed, walk, parallel in _walks(tools, tags, schemas, seeds, words, is_free=True):
        if walk.ended:
            found, content = calls(tools, schemas, walk.text, seed)
            assert parallel or len(found) <= 1, walk.text
            assert found or content == re.sub(dropped, "", walk.text), walk.text
            _assert_valid(found, schemas, walk)
            ended += 1
            calling += bool(found)
    assert ended >= len(seeds) * 0.7, f"only {ended} walks ended"
    assert calling >= len(seeds) * 0.1, f"only {calling} walks call"


def _walks(
    tools: ToolFormat,
    tags: Sequence[str],
    schemas: Schemas,
    seeds: range,
    words: Sequence[str] = (),
    *,
    is_free: bool,
) -> Iterable[tuple[int, Walk, bool]]:
    """The seeds are shared out: calls in parallel or not, tags that are special tokens or not."""
    for number, (parallel, special) in enumerate(
        ((True, True), (True, False), (False, True), (False, False))
    ):
        grammar = (free if is_free else forced)(tools, schemas, parallel=parallel)
        share = seeds[number::4]
        for seed, walk in zip(
            share, Walker(tags, special=special, words=words).walks(grammar, share), strict=True
        ):
            yield seed, walk, parallel


def _assert_valid(found: Iterable[Call], schemas: Schemas, walk: Walk) -> None:
    try:
        assert_calls(found, schemas)
    except (ValueError, KeyError, jsonschema.ValidationError) as error:
        raise AssertionError(f"{walk.text!r}: {error}") from error
