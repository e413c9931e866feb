"""A JSON Schema split into branches, for grammars of values that are not written as JSON."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from enginebay import Json, SchemaError, json_value, subschema

TYPES = frozenset(["string", "number", "integer", "boolean", "object", "array", "null"])
_MOST_BRANCHES = 64
_COMBINED = ("anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class Subschema:
    """The schema at a JSON pointer in a root."""

    root: Mapping[str, object]
    pointer: str = ""

    @property
    def schema(self) -> Mapping[str, object]:
        """The schema itself; `true` and `false` in the form of objects."""
        found: object = self.root
        for key in self.pointer.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise self.error("there is nothing here that `$ref` could mean")
        if isinstance(found, bool):
            return {} if found else {"enum": []}
        if not isinstance(found, Mapping):
            raise self.error("this is no schema")
        return found

    def at(self, *keys: str | int) -> "Subschema":
        """A part of this one."""
        steps = (str(key).replace("~", "~0").replace("/", "~1") for key in keys)
        return replace(self, pointer="/".join([self.pointer, *steps]))

    def each(self, keyword: str) -> list["Subschema"]:
        """The parts that a keyword lists."""
        listed = self.schema.get(keyword)
        return [self.at(keyword, i) for i in range(len(listed))] if isinstance(listed, list) else []

    def error(self, reason: str, *keys: str | int) -> SchemaError:
        """An error that says that this cannot be enforced."""
        return SchemaError(self.at(*keys).pointer, reason)

    def json(self, types: frozenset[str]) -> Json:
        """JSON of these types that is valid here."""
        part = subschema(self.root, self.pointer)
        return json_value({**part, "type": sorted(types)})


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to be valid: having one of the types, and satisfying the keywords of all parts.

    The parts are to be read without `$ref`, `allOf`, `anyOf` and `oneOf`, which are in them.
    """

    types: frozenset[str]
    subschemas: tuple[Subschema, ...]

    def joined(self, other: "Branch") -> "Branch":
        """The way to be valid against both."""
        return Branch(self.types & other.types, (*self.subschemas, *other.subschemas))

    def said(self, keyword: str) -> Iterator[tuple[Subschema, object]]:
        """The parts' values of a keyword."""
        for part in self.subschemas:
            if keyword in part.schema:
                yield part, part.schema[keyword]

    def values(self) -> list[object] | None:
        """All values that `enum` and `const` leave; None without these."""
        lists = [value for _, value in self.said("enum") if isinstance(value, list)]
        lists += [[value] for _, value in self.said("const")]
        if not lists:
            return None
        texts = [{json.dumps(value, sort_keys=True) for value in each} for each in lists[1:]]
        return [
            value
            for value in lists[0]
            if all(json.dumps(value, sort_keys=True) in each for each in texts)
            and type_of(value) & self.types
        ]

    def refuse(self, *keywords: str) -> None:
        """`SchemaError` if one of these keywords is used."""
        for keyword in keywords:
            for part, _ in self.said(keyword):
                raise part.error(f"`{keyword}` cannot be enforced in this syntax", keyword)


def branches(part: Subschema) -> list[Branch]:
    """All ways to be valid against a schema."""
    return [branch for branch in _branches(part, frozenset()) if branch.types]


def types_of(alternatives: Sequence[Branch]) -> frozenset[str]:
    """The types that a value may have."""
    return frozenset[str]().union(*(branch.types for branch in alternatives))


def type_of(value: object) -> frozenset[str]:
    """The names that the type of a JSON value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case Mapping():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def _branches(part: Subschema, followed: frozenset[str]) -> list[Branch]:
    if part.pointer in followed:
        raise part.error("this is nothing but a reference to itself")
    followed |= {part.pointer}
    schema = part.schema
    ways = [[Branch(_types(schema), (part,))]]
    if "$ref" in schema:
        ways.append(_branches(_referred(part), followed))
    ways += [_branches(each, followed) for each in part.each("allOf")]
    for keyword in _COMBINED:
        if each := part.each(keyword):
            options = [_branches(option, followed) for option in each]
            if keyword == "oneOf" and not _exclusive(options):
                raise part.error("more than one of these could hold at a time", keyword)
            ways.append(list(itertools.chain.from_iterable(options)))
    combined = [Branch(TYPES, ())]
    for way in ways:
        joined = (a.joined(b) for a in combined for b in way)
        combined = [branch for branch in joined if branch.types]
        if len(combined) > _MOST_BRANCHES:
            raise part.error("there are too many combinations")
    return combined


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    named = schema.get("type", sorted(TYPES))
    types = frozenset(map(str, named if isinstance(named, list) else [named])) & TYPES
    if "number" in types:
        types |= {"integer"}
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list):
            types &= frozenset[str]().union(*map(type_of, values))
    return types


def _exclusive(options: Sequence[Sequence[Branch]]) -> bool:
    """Whether no value can be valid against two of the options."""
    for one, other in itertools.combinations(options, 2):
        for a, b in itertools.product(one, other):
            if not a.types & b.types:
                continue
            mine, others = a.values(), b.values()
            if mine is None or others is None or any(value in others for value in mine):
                return False
    return True


def _referred(part: Subschema) -> Subschema:
    pointer = part.schema["$ref"]
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        raise part.error("only references into the same schema can be followed", "$ref")
    return Subschema(part.root, pointer[1:])
