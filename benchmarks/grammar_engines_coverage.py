"""How much of JSON Schema the engines get right: the official test suite, and what it leaves out.

A grammar that is too strict keeps a model from some documents. One that is unsound lets it write
documents for which the schema does not hold.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

import jsonschema
import numpy as np

from benchmarks.grammar_engines_adapters import Compiled, Engine, Json, RefusedError, Vocabulary
from tests.schema_suite import Group, Instance, schema_suite

ORDERS = 200
"""At most so many orders of a document's keys are tried."""
WALKS = 100
WALK_BYTES = 300
WEIGHTS = {'"]}': 20.0, "{[,:": 12.0, "\\u": 4.0, " \n\r\t": 0.3, "abx0123d8": 4.0}
"""Bytes that random documents have more often than others, so that many of them end."""

_TYPES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
TRAPS: dict[str, tuple[Json, str]] = {
    "a property's name spelled with `\\u`": (
        {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"},
        '{"a":1,"\\u0061":"x"}',
    ),
    "a pattern's property spelled with `\\u`": (
        {"patternProperties": {"^a": {"type": "integer"}}, "type": "object"},
        '{"\\u0061":"x"}',
    ),
    "a key twice, for `minProperties`": ({"minProperties": 2, "type": "object"}, '{"a":1,"a":1}'),
    "U+0001 left out of `const`": ({"const": "a\x01b"}, '"ab"'),
    "U+0001 left out of `pattern`": ({"pattern": "^a\\x01b$", "type": "string"}, '"ab"'),
    "29 February of a common year": ({"format": "date", "type": "string"}, '"2021-02-29"'),
    "a leap second at noon": ({"format": "time", "type": "string"}, '"12:00:60Z"'),
    "a whole `exclusiveMinimum`, less than one below `maximum`": (
        {"exclusiveMinimum": 0, "maximum": 0.5, "type": "number"},
        "0",
    ),
    "two branches of `oneOf`": (
        {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
        "3",
    ),
    "an option of the engine in the schema": (
        {"not": {"type": "integer"}, "x-guidance": {"lenient": True}},
        "1",
    ),
}
"""Documents for which the schema does not hold, that the suite does not have like this."""


@dataclass(slots=True)
class Counts:
    """Documents of one file of the suite, and those that went wrong."""

    right: int = 0
    too_strict: int = 0
    unsound: int = 0
    refused: int = 0
    schemas: int = 0
    schemas_refused: int = 0
    wrong: list[str] = field(default_factory=list)


def coverage(kind: type[Engine]) -> Json:
    """All of this module for one engine."""
    engine = kind(Vocabulary.of_bytes())
    return {
        "suite": _as_json(suite(engine, schema_suite())),
        "typed": _as_json(suite(engine, _typed(schema_suite()))),
        "formats": _as_json(suite(engine, _of_strings(_typed(schema_suite(formats=True))))),
        "random": walks(engine, schema_suite()),
        "traps": {name: _trapped(engine, *trap) for name, trap in TRAPS.items()},
    }


def suite(engine: Engine, groups: Iterable[Group]) -> dict[str, Counts]:
    """Whether the engine accepts what is valid and nothing else, by keyword."""
    keywords: dict[str, Counts] = {}
    for group in groups:
        counts = keywords.setdefault(group.keyword, Counts())
        counts.schemas += 1
        try:
            compiled = engine.schema(group.schema)
        except RefusedError:
            counts.schemas_refused += 1
            counts.refused += len(group.instances)
            continue
        for instance in group.instances:
            _judge(counts, group, instance, compiled)
    return keywords


def _typed(groups: Iterable[Group]) -> Iterator[Group]:
    """The schemas with the type of each document, where they name none, as people write them."""
    for group in groups:
        if not isinstance(group.schema, dict) or "type" in group.schema:
            yield group
            continue
        by_type: dict[str, list[Instance]] = {}
        for instance in group.instances:
            by_type.setdefault(_TYPES[type(instance.data)], []).append(instance)
        for name, instances in by_type.items():
            schema = {**group.schema, "type": name}
            yield replace(group, schema=schema, instances=tuple(instances))


def _of_strings(groups: Iterable[Group]) -> Iterator[Group]:
    """Those of strings, which are all that formats are about."""
    for group in groups:
        if isinstance(group.schema, dict) and group.schema.get("type") == "string":
            yield group


def _judge(counts: Counts, group: Group, instance: Instance, compiled: Compiled) -> None:
    """Count a document as accepted if it is with its keys in some order.

    Engines want the schema's order, which is no fault.
    """
    texts = list(_spellings(instance.data))
    accepted = next((text for text in texts if accepts(compiled, text)), None)
    if (accepted is not None) == instance.valid:
        counts.right += 1
        return
    counts.too_strict += instance.valid
    counts.unsound += not instance.valid
    verdict = "too strict" if instance.valid else "unsound"
    case = f"{group.description}: {instance.description}"
    counts.wrong.append(f"{verdict}: {case}: {accepted or texts[0]}")


def accepts(compiled: Compiled, text: str) -> bool:
    """Whether this is a whole text of the grammar, whose vocabulary is of single bytes."""
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.may_end()


def _spellings(data: Json) -> Iterator[str]:
    """The document as compact JSON, with its keys as they are and in other orders."""
    for ordered in _orders(data):
        yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def _orders(data: Json) -> Iterator[Json]:
    made: Iterator[Json]
    match data:
        case dict():
            made = (
                dict(zip(keys, values, strict=True))
                for keys in itertools.permutations(data)
                for values in itertools.product(*(list(_orders(data[key])) for key in keys))
            )
        case list():
            made = map(list, itertools.product(*(list(_orders(item)) for item in data)))
        case _:
            made = iter([data])
    return itertools.islice(made, ORDERS)


def walks(engine: Engine, groups: Iterable[Group]) -> Json:
    """Follow the masks at random through each schema, and ask a validator about what comes out."""
    documents = 0
    invalid: list[Json] = []
    for number, group in enumerate(groups):
        try:
            compiled = engine.schema(group.schema)
        except RefusedError:
            continue
        validator = jsonschema.Draft202012Validator(group.schema)
        for walk in range(WALKS):
            text = _walk(compiled, engine, random.Random(number * WALKS + walk))
            if text is None:
                continue
            documents += 1
            if problem := _problem(validator, text):
                shown = {"document": text.decode(errors="replace"), "problem": problem[:200]}
                invalid.append({"keyword": group.keyword, "case": group.description, **shown})
    by_keyword: dict[str, int] = {}
    for found in invalid:
        by_keyword[found["keyword"]] = by_keyword.get(found["keyword"], 0) + 1
    examples = [next(same) for _, same in itertools.groupby(invalid, _case)]
    return {"documents": documents, "invalid": by_keyword, "examples": examples}


def _case(found: Json) -> tuple[str, str]:
    return found["keyword"], found["case"]


def _problem(validator: jsonschema.Draft202012Validator, text: bytes) -> str | None:
    try:
        return next((error.message for error in validator.iter_errors(json.loads(text))), None)
    except Exception as error:  # an unresolved $ref, a number beyond all floats, no JSON at all
        return f"{type(error).__name__}: {error}"


def _walk(compiled: Compiled, engine: Engine, choose: random.Random) -> bytes | None:
    """A random document; None when it has no end, or none within some hundred bytes."""
    matcher, mask, text = compiled.matcher(), engine.mask(), bytearray()
    while len(text) < WALK_BYTES:
        if matcher.may_end() and choose.random() < 0.3:
            return bytes(text)
        mask.fill(0)
        matcher.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:256]
        allowed = np.flatnonzero(bits).tolist()
        if not allowed:
            return bytes(text) if matcher.may_end() else None
        byte = choose.choices(allowed, [_WEIGHT[byte] for byte in allowed])[0]
        if not matcher.accept(byte):
            return None
        text.append(byte)
    return None


_WEIGHT = [
    next((weight for these, weight in WEIGHTS.items() if byte in these.encode()), 1.0)
    for byte in range(256)
]


def _trapped(engine: Engine, schema: Json, document: str) -> str:
    try:
        compiled = engine.schema(schema)
    except RefusedError:
        return "refused"
    return "accepted" if accepts(compiled, document) else "right"


def _as_json(keywords: dict[str, Counts]) -> Json:
    return {name: asdict(counts) for name, counts in keywords.items()}
