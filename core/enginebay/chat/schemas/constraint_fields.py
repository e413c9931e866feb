"""Constraint fields of requests.

`response_format` of OpenAI, with what llama.cpp and WebLLM have in it; `guided_*` and
`structured_outputs` of vLLM; `json_schema`, `regex_pattern` and `grammar_string` of TabbyAPI.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from enginebay.config.field_types import Scalars, aliased
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError


@dataclass(frozen=True, slots=True)
class SchemaConstraint:
    """JSON that is valid against a JSON Schema."""

    schema: dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class RegexConstraint:
    """A text that all of a regular expression matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class ChoiceConstraint:
    """One of several texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrammarConstraint:
    """What a grammar in GBNF or Lark matches."""

    source: str


Constraint = SchemaConstraint | RegexConstraint | ChoiceConstraint | GrammarConstraint
"""A constraint as it was asked for, not yet a grammar."""

ANY_OBJECT = SchemaConstraint({"type": "object"})


def _schema(value: Any) -> Any:
    """A JSON Schema, or its JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"must be a JSON Schema or its JSON text: {error}") from error
    if not isinstance(value, dict | bool):
        raise ValueError("must be a JSON Schema or its JSON text")
    return value


def _none_if_empty(value: Any) -> Any:
    """Clients of vLLM and TabbyAPI send `{}`, `""` or `[]` for unset."""
    return None if value in ({}, "", []) else value


Schema = Annotated[dict[str, Any] | bool, BeforeValidator(_schema)]
Source = Annotated[str, Field(max_length=65_536)]
Texts = Annotated[Scalars[str], Field(max_length=10_000)]
OptionalSchema = Annotated[
    Schema | None, BeforeValidator(_none_if_empty), AfterValidator(_none_if_empty)
]
OptionalSource = Annotated[Source | None, BeforeValidator(_none_if_empty)]
OptionalTexts = Annotated[Texts | None, BeforeValidator(_none_if_empty)]


class JsonSchemaFormat(BaseModel):
    """`response_format.json_schema`; it is enforced whether it is `strict` or not."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Schema | None = Field(None, alias="schema")


class ResponseFormat(BaseModel):
    """`response_format` of OpenAI.

    `schema` beside the type is how llama.cpp and WebLLM have it, `grammar` WebLLM; `json` is
    TabbyAPI's name of `json_object`.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json", "json_object", "json_schema", "grammar"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Schema | None = Field(None, alias="schema")
    grammar: OptionalSource = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if self.type == "json_schema" and self._schema() is None:
            raise InvalidRequestError(
                "response_format of the type json_schema needs a json_schema with a schema",
                param="response_format.json_schema",
            )
        if self.type == "grammar" and self.grammar is None:
            raise InvalidRequestError(
                "response_format of the type grammar needs a grammar",
                param="response_format.grammar",
            )
        return self

    @property
    def asked(self) -> tuple[str, Constraint] | None:
        """The constraint and the name of the field it stands in; None for plain text."""
        if self.type == "grammar":
            return "response_format.grammar", GrammarConstraint(self.grammar or "")
        if self.type == "text":
            return None
        name, schema = self._schema() or ("response_format", None)
        if schema is None or (self.type != "json_schema" and not schema):
            return name, ANY_OBJECT
        return name, SchemaConstraint(schema)

    @property
    def unused(self) -> Iterator[tuple[str, Any]]:
        """Fields beside the constraint `asked` that have no effect."""
        name, constraint = self.asked or ("", None)
        if self.grammar is not None and self.type != "grammar":
            yield "response_format.grammar", self.grammar
        nested = self.json_schema.schema_ if self.json_schema else None
        for place, schema in (
            ("response_format.json_schema.schema", nested),
            ("response_format.schema", self.schema_),
        ):
            if schema is not None and name != place and SchemaConstraint(schema) != constraint:
                yield place, schema

    def _schema(self) -> tuple[str, dict[str, Any] | bool] | None:
        if self.json_schema and self.json_schema.schema_ is not None:
            return "response_format.json_schema.schema", self.json_schema.schema_
        if self.schema_ is not None:
            return "response_format.schema", self.schema_
        return None


class StructuredOutputs(BaseModel):
    """`structured_outputs` of vLLM (https://docs.vllm.ai/en/latest/features/structured_outputs/)."""

    model_config = ConfigDict(extra="allow")

    json_: OptionalSchema = Field(None, alias="json")
    regex: OptionalSource = None
    choice: OptionalTexts = None
    grammar: OptionalSource = None
    json_object: bool | None = None
    structural_tag: Any = None

    @model_validator(mode="after")
    def _refuse_structural_tags(self) -> Self:
        if self.structural_tag:
            raise UnsupportedParameterError(
                "structural tags are not supported; use a grammar instead",
                param="structured_outputs.structural_tag",
            )
        return self


class ConstraintBody(BaseModel):
    """The fields of a request that constrain its answer; values that mean off become None."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: OptionalSchema = None
    guided_json_object: bool | None = None
    guided_regex: OptionalSource = None
    guided_choice: OptionalTexts = None
    guided_grammar: OptionalSource = None
    json_schema: OptionalSchema = None
    regex_pattern: OptionalSource = None
    grammar: OptionalSource = aliased("grammar", "grammar_string")

    def asked_constraint(self) -> tuple[str, Constraint] | None:
        """What constrains the answer, and the name of the field that says so.

        `InvalidRequestError` where two fields contradict each other.
        """
        found: tuple[str, Constraint] | None = None
        for name, constraint in self._asked():
            if found and found[1] != constraint:
                raise InvalidRequestError(
                    f"{found[0]} and {name} contradict each other: send only one of them",
                    param=name,
                )
            found = found or (name, constraint)
        return found

    def _asked(self) -> Iterator[tuple[str, Constraint]]:
        if self.response_format and self.response_format.asked:
            yield self.response_format.asked
        nested = self.structured_outputs or StructuredOutputs()
        for name, schema in (
            ("structured_outputs.json", nested.json_),
            ("guided_json", self.guided_json),
            ("json_schema", self.json_schema),
        ):
            if schema is not None:
                yield name, SchemaConstraint(schema)
        for name, any_object in (
            ("structured_outputs.json_object", nested.json_object),
            ("guided_json_object", self.guided_json_object),
        ):
            if any_object:
                yield name, ANY_OBJECT
        for name, pattern in (
            ("structured_outputs.regex", nested.regex),
            ("guided_regex", self.guided_regex),
            ("regex_pattern", self.regex_pattern),
        ):
            if pattern is not None:
                yield name, RegexConstraint(pattern)
        for name, texts in (
            ("structured_outputs.choice", nested.choice),
            ("guided_choice", self.guided_choice),
        ):
            if texts is not None:
                yield name, ChoiceConstraint(tuple(texts))
        for name, source in (
            ("structured_outputs.grammar", nested.grammar),
            ("guided_grammar", self.guided_grammar),
            ("grammar", self.grammar),
        ):
            if source is not None:
                yield name, GrammarConstraint(source)

    def unread_settings(self) -> Iterator[tuple[str, Any]]:
        """Unknown keys inside these fields' objects."""
        yield from extra_keys("response_format", self.response_format)
        yield from extra_keys("structured_outputs", self.structured_outputs)
        if self.response_format:
            yield from self.response_format.unused
            yield from extra_keys("response_format.json_schema", self.response_format.json_schema)


def extra_keys(place: str, settings: BaseModel | None) -> Iterator[tuple[str, Any]]:
    """The unknown keys of an object in a body, by their paths."""
    for key, value in ((settings and settings.model_extra) or {}).items():
        yield f"{place}.{key}", value
