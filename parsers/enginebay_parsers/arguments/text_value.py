"""Grammars of values that are written as plain text, as `TypedValue` reads them back."""

import re
from dataclasses import dataclass

from enginebay import Grammar, Until, sequence
from enginebay_parsers.arguments.subschema import TYPES, Subschema, branches, types_of
from enginebay_parsers.arguments.text_rules import TextRules, text_rules
from enginebay_parsers.arguments.typed_value import TypedValue
from enginebay_parsers.stream.json_scanner import json_string

# What `str.strip` takes away.
_SPACE = r"[\s\x1c-\x1f]*"
# Texts that are read as a value of another type where that is allowed.
_READ_AS = {
    "null": "null|None",
    "boolean": "true|false|True|False",
    "number": r"-?[0-9.eE+-]*[0-9][0-9.eE+-]*",
    "object": r"\{(?s:.*)",
    "array": r"\[(?s:.*)",
}


@dataclass(frozen=True, slots=True)
class TextValue:
    """How values are written before the text `end`, which is included.

    `left_out`: texts that cannot be in one that is a string. `says_type`: the syntax marks
    strings. `empty_means`: types that nothing but white space stands for.
    """

    end: str
    left_out: tuple[str, ...] = ()
    says_type: bool = False
    empty_means: frozenset[str] = frozenset()

    def strings(self, part: Subschema, types: frozenset[str]) -> list[tuple[str, Grammar]]:
        """Each way to write a string, and its type. `types`: what the parser knows."""
        if types and "string" not in types:
            return []
        others = frozenset[str]() if self.says_type else types - {"string"}
        texts = [self._text(rules, others) for rules in text_rules(branches(part))]
        return [("string", text) for text in texts if text is not None]

    def others(
        self, part: Subschema, types: frozenset[str], valid: frozenset[str] = TYPES
    ) -> list[tuple[str, Grammar]]:
        """Each way to write a value that is no string, as JSON, and its type, if it is `valid`."""
        if types == {"string"} or not (types or self.says_type):
            return []
        valid &= types_of(branches(part)) - {"string"}
        if "number" in valid:
            valid -= {"integer"}
        each = [frozenset({name}) for name in sorted(valid)] if self.says_type else [valid]
        return [(_name(names), sequence(part.json(names), self.end)) for names in each if names]

    def _text(self, rules: TextRules, others: frozenset[str]) -> Grammar | None:
        """Strings that are not read as a value of another type."""
        if rules.values is not None:
            texts = [text for text in rules.values if self._reads_back(text, others)]
            return Until(self.end, ("|".join(map(re.escape, texts)),)) if texts else None
        none = [f"{_SPACE}(?:{_READ_AS[name]}){_SPACE}" for name in sorted(others)]
        if others & self.empty_means:
            none.append(_SPACE)
        return Until(self.end, rules.patterns, tuple(none), self.left_out)

    def _reads_back(self, text: str, others: frozenset[str]) -> bool:
        if any(each in text for each in (self.end, *self.left_out)):
            return False
        if others & self.empty_means and not text.strip():
            return False
        value = TypedValue(others | {"string"})
        return value.feed(text) + value.end() == json_string(text)


def _name(types: frozenset[str]) -> str:
    """The type of a value, which is a number for an integer, where the syntax says one."""
    name = min(types)
    return "number" if name == "integer" else name
