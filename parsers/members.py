"""The members that a JSON Schema lets an object have, for grammars that write them in order."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from parsers.schema_part import Branch, SchemaPart, branches

_REFUSED = (
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "$dynamicRef",
    "$recursiveRef",
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member that is written whenever it is `required`, and else once or not at all."""

    name: str
    part: SchemaPart
    required: bool


@dataclass(frozen=True, slots=True)
class Members:
    """Those of an object, in order, and what any `further` ones must be; None: there are none.

    A schema that says nothing about further members gets none: models would only make them up.
    """

    each: tuple[Member, ...]
    further: SchemaPart | None
    most_further: int | None


def object_members(part: SchemaPart) -> list[Members]:
    """The members for each way to be an object. `SchemaError` for what cannot be followed."""
    found = [branch for branch in branches(part) if "object" in branch.types]
    if not found:
        raise part.error("no object is valid here")
    return [members(branch) for branch in found]


def members(branch: Branch) -> Members:
    """The members for one way to be an object. `SchemaError` for what cannot be followed."""
    branch.refuse(*_REFUSED)
    if branch.values() is not None:
        branch.refuse("enum", "const")
    parts: dict[str, SchemaPart] = {}
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
                raise branch.parts[0].error(f"no member {name!r} is allowed", "required")
            parts[name] = further
    most = _most_further(branch, len(parts), len(set(required)))
    each = tuple(Member(name, part, name in required) for name, part in parts.items())
    return Members(each, None if most == 0 else further, most)


def _refuse_outside(branch: Branch, part: SchemaPart, name: str) -> None:
    """`SchemaError` if what another part says of further members holds for this one of `part`."""
    for other, schema in branch.said("additionalProperties"):
        if other != part and schema is not True:
            raise other.error(f"this holds for {name!r} too", "additionalProperties")
    for other, patterns in branch.said("patternProperties"):
        for pattern in patterns if isinstance(patterns, Mapping) else ():
            if _finds(other, pattern, name):
                raise other.error(f"this holds for {name!r} too", "patternProperties", pattern)


def _finds(part: SchemaPart, pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise part.error(str(error), "patternProperties", pattern) from None


def _further(branch: Branch) -> SchemaPart | None:
    """What members must be that are not named; None where they are left out."""
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
