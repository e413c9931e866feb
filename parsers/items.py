"""The items that a JSON Schema lets an array have."""

from dataclasses import dataclass

from enginebay import Grammar, Repeat, optional, sequence
from parsers.schema_part import Branch, SchemaPart

_REFUSED = (
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
class Items:
    """`least` to `most` items, each of which is valid against `part`."""

    part: SchemaPart
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
    """The items for one way to be an array. `SchemaError` for what cannot be followed."""
    branch.refuse(*_REFUSED)
    said = [part.at("items") for part, _ in branch.said("items")]
    if len(said) > 1:
        raise said[0].error("items are described twice")
    least = [int(n) for _, n in branch.said("minItems") if isinstance(n, int | float)]
    most = [int(n) for _, n in branch.said("maxItems") if isinstance(n, int | float)]
    items = Items(
        said[0] if said else SchemaPart({}), max(least, default=0), min(most, default=None)
    )
    if items.most is not None and items.least > items.most:
        raise branch.parts[0].error("no array is so short and so long", "maxItems")
    return items
