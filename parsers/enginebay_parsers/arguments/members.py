"""The members of objects and the items of arrays that a JSON Schema allows, for grammars."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from enginebay import Grammar, Repeat, choice, optional, sequence
from enginebay_parsers.arguments.subschema import Branch, Subschema, branches

_REFUSED_OF_OBJECTS = (
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "$dynamicRef",
    "$recursiveRef",
)
_REFUSED_OF_ARRAYS = (
    "not",
    "if",
    "uniqueItems",
    "contains",
    "prefixItems",
    "unevaluatedItems",
    "additionalItems",
    "$dynamicRef",
    "$recursiveRef",
    "enum",
    "const",
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member that is written whenever it is `required`, and else once or not at all."""

    name: str
    part: Subschema
    required: bool


@dataclass(frozen=True, slots=True)
class Members:
    """Those of an object, in order, and what any `further` ones must be; None: there are none.

    A schema that does not mention further members gets none: models would only make them up.
    """

    each: tuple[Member, ...]
    further: Subschema | None
    most_further: int | None


def object_members(part: Subschema) -> list[Members]:
    """The members for each way to be an object. `SchemaError` for what is not supported."""
    found = [branch for branch in branches(part) if "object" in branch.types]
    if not found:
        raise part.error("no object is valid here")
    return [members(branch) for branch in found]


def members(branch: Branch) -> Members:
    """The members for one way to be an object. `SchemaError` for what is not supported."""
    branch.refuse(*_REFUSED_OF_OBJECTS)
    if branch.values() is not None:
        branch.refuse("enum", "const")
    parts: dict[str, Subschema] = {}
    for part, properties in branch.said("properties"):
        for name in properties if isinstance(properties, Mapping) else ():
            if name in parts:
                raise part.error("this member is described twice", "properties", name)
            parts[name] = part.at("properties", name)
            _refuse_outside(branch, part, name)
    required = [
        str(name)
        for _, names in branch.said("required")
        for name in (names if isinstance(names, list) else [])
    ]
    further = _further(branch)
    for name in required:
        if name not in parts:
            if further is None:
                raise branch.subschemas[0].error(f"no member {name!r} is allowed", "required")
            parts[name] = further
    most = _most_further(branch, len(parts), len(set(required)))
    each = tuple(Member(name, part, name in required) for name, part in parts.items())
    return Members(each, None if most == 0 else further, most)


def _refuse_outside(branch: Branch, part: Subschema, name: str) -> None:
    """`SchemaError` if another part's rule for further members applies to this member of `part`."""
    for other, schema in branch.said("additionalProperties"):
        if other != part and schema is not True:
            raise other.error(f"this holds for {name!r} too", "additionalProperties")
    for other, patterns in branch.said("patternProperties"):
        for pattern in patterns if isinstance(patterns, Mapping) else ():
            if _finds(other, pattern, name):
                raise other.error(f"this holds for {name!r} too", "patternProperties", pattern)


def _finds(part: Subschema, pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise part.error(str(error), "patternProperties", pattern) from None


def _further(branch: Branch) -> Subschema | None:
    """The schemas of members that are not named; None if they are left out."""
    said = [
        part.at(keyword)
        for keyword in ("additionalProperties", "unevaluatedProperties")
        for part, _ in branch.said(keyword)
    ]
    if any(True for _ in branch.said("patternProperties")):
        return None
    if any(part.schema == {"enum": []} for part in said):
        return None
    strict = [part for part in said if part.schema]
    if len(strict) > 1:
        raise strict[0].error("this cannot be enforced together with another one")
    return next(iter(strict or said), None)


def _most_further(branch: Branch, named: int, required: int) -> int | None:
    for part, count in branch.said("minProperties"):
        if isinstance(count, int) and count > required:
            raise part.error("more members than those required cannot be forced", "minProperties")
    counts = [(count, part) for part, count in branch.said("maxProperties")]
    for count, part in counts:
        if not isinstance(count, int) or count < named:
            raise part.error("fewer members than are named cannot be enforced", "maxProperties")
    return min((int(str(count)) - named for count, _ in counts), default=None)


@dataclass(frozen=True, slots=True)
class Items:
    """`least` to `most` items, each of which is valid against `part`."""

    part: Subschema
    least: int
    most: int | None

    def listed(self, item: Grammar, separator: str, *, least: int = 0) -> Grammar:
        """The items with a separator between them, `least` at least."""
        least = max(self.least, least)
        most = None if self.most is None else max(self.most - 1, 0)
        further = Repeat(sequence(separator, item), max(least - 1, 0), most)
        if self.most == 0:
            return sequence()
        return sequence(item, further) if least else optional(sequence(item, further))


def array_items(branch: Branch) -> Items:
    """The items for one way to be an array. `SchemaError` for what is not supported."""
    branch.refuse(*_REFUSED_OF_ARRAYS)
    said = [part.at("items") for part, _ in branch.said("items")]
    if len(said) > 1:
        raise said[0].error("items are described twice")
    least = [int(n) for _, n in branch.said("minItems") if isinstance(n, int | float)]
    most = [int(n) for _, n in branch.said("maxItems") if isinstance(n, int | float)]
    items = Items(
        said[0] if said else Subschema({}), max(least, default=0), min(most, default=None)
    )
    if items.most is not None and items.least > items.most:
        raise branch.subschemas[0].error("no array is so short and so long", "maxItems")
    return items


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that is written whenever it is `required`, and else once or not at all."""

    grammar: Grammar
    required: bool


def listed(
    entries: Sequence[Entry], separator: str, further: Grammar | None, most_further: int | None
) -> Grammar:
    """The entries in order and then `further` ones, with a separator between them."""

    def behind(first: int) -> Iterator[Grammar]:
        for entry in entries[first:]:
            item = sequence(separator, entry.grammar)
            yield item if entry.required else optional(item)
        if further is not None:
            yield Repeat(sequence(separator, further), 0, most_further)

    ways = []
    for number, entry in enumerate(entries):
        ways.append(sequence(entry.grammar, *behind(number + 1)))
        if entry.required:
            return choice(*ways)
    if further is not None:
        most = None if most_further is None else most_further - 1
        ways.append(sequence(further, Repeat(sequence(separator, further), 0, most)))
    return optional(choice(*ways)) if ways else sequence()
