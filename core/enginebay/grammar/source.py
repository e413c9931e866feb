"""Converts client constraints to grammar expressions."""

import json
import re
from collections.abc import Iterable

from llguidance import regex_to_lark

from enginebay.contract.errors import SchemaError
from enginebay.contract.grammar import Grammar, Lark, Pattern, choice
from enginebay.grammar.gbnf import gbnf_to_lark
from enginebay.grammar.json_schema import check_schema
from enginebay.grammar.regex import text_regex

_MOST_RULES = 1000  # one that leads to the next, and so on, is as deep as the engine's stack
_MOST_ITEMS = 1000  # the engine follows at most 2,000 at once
_GBNF_RULE = re.compile(r"(?m)^\s*[\w-]+\s*::=")
_JSON = re.compile(r"%json\s*(?=\{)")


def regular_expression(pattern: str) -> Pattern:
    r"""What a whole text must match; ECMA-262's dialect, so `\d` and `\w` are ASCII's.

    `ValueError` for lookaround and backreferences, which no grammar can express.
    """
    return Pattern(regex_to_lark(text_regex(pattern), "dw"))


def choices(texts: Iterable[str]) -> Grammar:
    """One of these texts."""
    each = dict.fromkeys(texts)
    if len(each) > _MOST_ITEMS:
        return Pattern("|".join(map(re.escape, each)))
    return choice(*each)


def grammar_source(source: str) -> Lark:
    """A grammar in GBNF, which has a rule `root ::=`, or in Lark, which has `start:`.

    `ValueError` for one that cannot be read, with line and column. Whether it compiles is for
    `check_grammar`.
    """
    if source.count(":") > _MOST_RULES:
        raise ValueError(f"the grammar has more than {_MOST_RULES} rules")
    lark = gbnf_to_lark(source) if _GBNF_RULE.search(source) else source
    for found in _JSON.finditer(lark):
        _check_json(lark, found.end())
    return Lark(lark)


def _check_json(lark: str, at: int) -> None:
    line = lark.count("\n", 0, at) + 1
    try:
        schema, _ = json.JSONDecoder().raw_decode(lark, at)
        check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"line {line}: %json: {error}") from None
    except RecursionError:
        raise ValueError(f"line {line}: %json: it is nested too deeply") from None
    except json.JSONDecodeError:
        return  # the engine says where
    if "x-guidance" in schema:
        raise ValueError(f"line {line}: %json: x-guidance is not supported")
