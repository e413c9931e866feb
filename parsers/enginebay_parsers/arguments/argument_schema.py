"""The argument types in a function's JSON Schema."""

from collections.abc import Iterable, Iterator, Mapping

# An integer is a number here: what tells them apart does not matter to how a value is written.
_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "object": "object",
    "array": "array",
    "null": "null",
}
_UNIONS = ("anyOf", "oneOf")


class ArgumentSchema:
    """The schema of one value, or an unknown type if it is not a schema.

    It reads `type`, `enum`, `const`, `nullable`, `anyOf`, `oneOf`, `allOf`, and `$ref` into the
    same schema. Other keywords are ignored.
    """

    def __init__(self, schema: object, root: object = None) -> None:
        self._schema = schema
        self._root = schema if root is None else root

    @property
    def types(self) -> frozenset[str]:
        """The JSON types that the value may have; empty if the schema does not say."""
        return self._types(self._schema, {})

    @property
    def members(self) -> list[str]:
        """The names of an object's declared members, in order."""
        found: dict[str, None] = {}
        for part in self._parts(self._schema, set()):
            properties = part.get("properties")
            if isinstance(properties, Mapping):
                found.update(dict.fromkeys(map(str, properties)))
        return list(found)

    def member(self, name: str) -> "ArgumentSchema":
        """The schema of an object's member."""
        parts = list(self._parts(self._schema, set()))
        for part in parts:
            properties = part.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return ArgumentSchema(properties[name], self._root)
        return self._first(parts, "additionalProperties")

    def item(self) -> "ArgumentSchema":
        """The schema of an array's items."""
        return self._first(self._parts(self._schema, set()), "items")

    def _first(self, parts: Iterable[Mapping[str, object]], keyword: str) -> "ArgumentSchema":
        for part in parts:
            if isinstance(part.get(keyword), Mapping):
                return ArgumentSchema(part[keyword], self._root)
        return ArgumentSchema(None)

    def _parts(self, schema: object, seen: set[str]) -> Iterator[Mapping[str, object]]:
        """The schema and every schema that it is made of."""
        if not isinstance(schema, Mapping):
            return
        yield schema
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer not in seen:
            seen.add(pointer)
            yield from self._parts(self._referred(pointer), seen)
        for keyword in ("allOf", *_UNIONS):
            for branch in _list(schema.get(keyword)):
                yield from self._parts(branch, seen)

    def _types(self, schema: object, known: dict[str, frozenset[str]]) -> frozenset[str]:
        """`known`: the types of references; empty while they are being followed."""
        if not isinstance(schema, Mapping):
            return frozenset()
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer not in known:
            known[pointer] = frozenset()
            known[pointer] = self._types(self._referred(pointer), known)
        said = [
            known[pointer] if isinstance(pointer, str) else frozenset[str](),
            _named(schema.get("type")),
            _types_of(_list(schema.get("enum"))),
            _types_of([schema["const"]] if "const" in schema else []),
            *(self._types(part, known) for part in _list(schema.get("allOf"))),
            *(self._union(_list(schema.get(keyword)), known) for keyword in _UNIONS),
        ]
        said = [types for types in said if types]
        if not said:
            return _implied(schema)
        types = frozenset.intersection(*said) or said[0]
        return types | {"null"} if schema.get("nullable") is True else types

    def _union(self, branches: list[object], known: dict[str, frozenset[str]]) -> frozenset[str]:
        each = [self._types(branch, known) for branch in branches]
        return frozenset[str]().union(*each) if all(each) else frozenset()

    def _referred(self, pointer: str) -> object:
        """The target of a `$ref` into this schema."""
        found: object = self._root
        for key in pointer.split("/")[1:] if pointer.startswith("#") else [""]:
            if not isinstance(found, Mapping):
                return None
            found = found.get(key.replace("~1", "/").replace("~0", "~"))
        return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _named(value: object) -> frozenset[str]:
    names = [value] if isinstance(value, str) else _list(value)
    known = [_TYPES.get(name.lower()) for name in names if isinstance(name, str)]
    return frozenset(name for name in known if name)


def _types_of(values: list[object]) -> frozenset[str]:
    return frozenset(_type_of(value) for value in values)


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _implied(schema: Mapping[str, object]) -> frozenset[str]:
    if "properties" in schema or "additionalProperties" in schema:
        return frozenset({"object"})
    if "items" in schema or "prefixItems" in schema:
        return frozenset({"array"})
    return frozenset()
