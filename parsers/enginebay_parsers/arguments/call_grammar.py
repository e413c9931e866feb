"""Shared parts of the call grammars."""

from enginebay import Case, Grammar, SchemaError, Schemas, Text, json_value


def opened(tag: Text, rest: Grammar) -> tuple[Case, ...]:
    """The rest of a call, or the backtick after a tag that is only mentioned."""
    return (Case(tag, rest), Case(tag, Text("`"), goes_on=True))


def argument_grammars(schemas: Schemas) -> dict[str, Grammar]:
    """The grammar of each function's arguments, an object. `SchemaError` if the schema allows no
    object.
    """
    for schema in schemas.values():
        if "object" not in schema.get("type", "object"):
            raise SchemaError("/type", "arguments are an object")
    return {name: json_value({**schema, "type": "object"}) for name, schema in schemas.items()}
