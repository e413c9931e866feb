"""Compiles constraints to grammars. Checks are cached, since clients repeat themselves."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from enginebay.chat.schemas.constraint_fields import (
    ChoiceConstraint,
    Constraint,
    ConstraintBody,
    GrammarConstraint,
    RegexConstraint,
    SchemaConstraint,
)
from enginebay.contract.errors import InvalidRequestError, SchemaError, UnsupportedParameterError
from enginebay.contract.grammar import Grammar, json_value
from enginebay.grammar.check import check_grammar
from enginebay.grammar.json_schema import check_schema, relaxed
from enginebay.grammar.source import choices, grammar_source, regular_expression
from enginebay.models.served import ServedModel

_REMEMBERED = 512
_LONGEST_REMEMBERED = 50_000  # characters


def content_grammar(body: ConstraintBody, model: ServedModel) -> Grammar | None:
    """The grammar of an answer's content; None if unconstrained.

    `InvalidRequestError` for a constraint that cannot be enforced, or not by the model's engine.
    """
    asked = body.asked_constraint()
    if asked is None:
        return None
    name, constraint = asked
    require_constraints(model, name)
    try:
        return _grammar(constraint)
    except UnicodeEncodeError as error:
        reason = "text must not contain a lone surrogate"
        raise InvalidRequestError(f"{name}: {reason}", param=name) from error
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}", param=name) from error


def require_constraints(model: ServedModel, param: str) -> None:
    """Raise unless the model's engine supports constrained decoding."""
    if not model.info.constraints:
        raise UnsupportedParameterError(
            f"{param} is not supported: model {model.asked!r} has no constrained decoding",
            param=param,
        )


def schema_problem(schema: Mapping[str, Any] | bool) -> SchemaError | None:
    """Why a schema cannot be enforced; None if it can."""
    try:
        text = json.dumps(schema)
        check = _schema_problem if len(text) <= _LONGEST_REMEMBERED else _new_schema_problem
        found = check(text)
    except RecursionError:
        found = "", "the schema is nested too deeply"
    return SchemaError(*found) if found else None


def relaxed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The enforceable part of a schema."""
    try:
        text = json.dumps(schema)
        relax = _relaxed if len(text) <= _LONGEST_REMEMBERED else _new_relaxed
        kept: dict[str, Any] = json.loads(relax(text))
    except RecursionError:
        return {}
    return kept


def _new_relaxed(schema: str) -> str:
    return json.dumps(relaxed(json.loads(schema)))


def _new_schema_problem(schema: str) -> tuple[str, str] | None:
    try:
        check_schema(json.loads(schema))
    except SchemaError as error:
        return error.path, error.reason
    return None


_relaxed = lru_cache(_REMEMBERED)(_new_relaxed)
_schema_problem = lru_cache(_REMEMBERED)(_new_schema_problem)


def _grammar(constraint: Constraint) -> Grammar:
    match constraint:
        case SchemaConstraint(schema):
            if problem := schema_problem(schema):
                raise problem
            return json_value(schema)
        case RegexConstraint(pattern):
            return _checked(regular_expression, pattern)
        case ChoiceConstraint(texts):
            for text in texts:
                text.encode()
            return choices(texts)
        case GrammarConstraint(source):
            return _checked(grammar_source, source)


@lru_cache(_REMEMBERED)
def _checked(read: Callable[[str], Grammar], source: str) -> Grammar:
    """What `read` makes of a pattern or grammar, which is known to compile then."""
    source.encode()
    grammar = read(source)
    check_grammar(grammar)
    return grammar
