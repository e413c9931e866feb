"""Sampling fields in files: `sampling` of a model in `config.yml`, and the entries of presets."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidationError,
    ValidatorFunctionWrapHandler,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from enginebay.config.field_types import field_names
from enginebay.config.messages import explain
from enginebay.config.problems import KeyPath
from enginebay.config.sampling_fields import Probability, SamplingFields
from enginebay.config.section import Section
from enginebay.config.walk import nearest
from enginebay.contract.errors import InvalidRequestError

_ENTRY_KEYS = ("override", "force", "additive")


class SamplingSection(Section):
    """Defaults for requests that do not set these params, and forced overrides."""

    @cached_property
    def defaults(self) -> SamplingFields:
        """The fields of requests that leave them unset; like `params` kept, as each asks for it."""
        forced = self.overrides()
        return SamplingFields.model_validate(
            {name: _value(value) for name, value in self if name not in forced}
        )

    @cached_property
    def params(self) -> Mapping[str, Any]:
        """The `SamplingParams` fields of a request that sets none."""
        return self.defaults.sampling_fields()

    def overrides(self) -> dict[str, dict[str, Any]]:
        """The entries that override requests (`force`) or are merged with them (`additive`)."""
        entries = {name: value for name, value in self if _is_entry(value)}
        return {k: v for k, v in entries.items() if v.get("force") or v.get("additive")}

    def check_token_ids(self, vocab_size: int) -> None:
        """`InvalidRequestError` for a token id that a model of this size does not have."""
        self._all().check_token_ids(vocab_size)

    def _all(self) -> SamplingFields:
        return SamplingFields.model_validate({name: _value(value) for name, value in self})

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        try:
            self._all().sampling_fields()
        except InvalidRequestError as error:
            problem = PydanticCustomError("value_error", "{text}", {"text": error.message})
            details = InitErrorDetails(type=problem, loc=(error.param or "",), input=None)
            raise ValidationError.from_exception_data("sampling", [details]) from error
        return self


class _OrEntry:
    """Accepts `{override, force, additive}` instead of a value, as in TabbyAPI."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        value = handler(source)
        switch = core_schema.typed_dict_field(core_schema.bool_schema(), required=False)
        entry = core_schema.typed_dict_schema(
            {
                "override": core_schema.typed_dict_field(value),
                "force": switch,
                "additive": switch,
            },
            extra_behavior="forbid",
        )
        as_written = core_schema.plain_serializer_function_ser_schema(dict)
        either = {
            "value": value,
            "entry": core_schema.no_info_wrap_validator_function(
                _entry, entry, serialization=as_written
            ),
        }
        return core_schema.tagged_union_schema(
            either, discriminator=lambda given: "entry" if _is_entry(given) else "value"
        )


def _entry(written: dict[str, Any], handler: ValidatorFunctionWrapHandler) -> dict[str, Any]:
    """The entry with its value as written: `Overrides` distinguishes -1 from unset."""
    entry = handler(written)
    if entry.get("additive") and not isinstance(entry["override"], list | dict | None):
        raise ValueError("additive is for lists and mappings; this is neither")
    return {**entry, "override": written["override"]}


def _is_entry(value: Any) -> bool:
    """Whether it is an entry, and not a mapping of token ids."""
    return isinstance(value, dict) and not value.keys().isdisjoint(_ENTRY_KEYS)


def _value(value: Any) -> Any:
    return value["override"] if _is_entry(value) else value


def _setting(field: FieldInfo) -> Any:
    kind: Any = field.annotation
    return Annotated[kind, *field.metadata, _OrEntry()], Field(None, description=field.description)


SamplingDefaults = create_model(
    "SamplingDefaults",
    __base__=SamplingSection,
    __doc__=SamplingSection.__doc__,
    **{name: _setting(field) for name, field in SamplingFields.model_fields.items()},
)

Sampling = Annotated[
    SamplingSection,
    GetPydanticSchema(lambda _, handler: handler.generate_schema(SamplingDefaults)),
]
"""A `SamplingSection` with a key for each of `SamplingFields`."""


def _one_if_more(value: Any) -> Any:
    """Treat more than 1 as 1: the example in TabbyAPI's documentation has a top_p of 1.5."""
    return 1 if isinstance(value, int | float) and value > 1 else value


class OverrideFields(SamplingFields):
    """The fields that a preset can override."""

    top_p: Annotated[Probability, BeforeValidator(_one_if_more)] | None = Field(
        None, description=SamplingFields.model_fields["top_p"].description
    )
    add_bos_token: bool | None = None


FIELDS = {
    alias: name
    for name, field in OverrideFields.model_fields.items()
    for alias in field_names(name, field)
}
"""The field that each name or alias refers to."""


class EntryError(ValueError):
    """An entry of a preset that cannot be used; `path` says where in it."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class Entry(BaseModel):
    """An entry of a preset in TabbyAPI's form."""

    model_config = ConfigDict(extra="forbid")

    override: Any = None
    force: bool | None = None
    additive: bool | None = None


def read_entry(name: str, value: Any) -> tuple[str, Entry]:
    """The field an entry overrides, and the entry with its validated value."""
    if name not in FIELDS:
        raise EntryError((), f"unknown sampling param{nearest(name, sorted(FIELDS))}")
    if not isinstance(value, dict):
        raise EntryError((), f"must be a mapping of {', '.join(_ENTRY_KEYS)}")
    try:
        entry = Entry.model_validate(value)
    except ValidationError as error:
        [(path, message), *_] = explain(error, value, Entry.model_json_schema())
        raise EntryError(path, message) from error
    try:
        body = OverrideFields.model_validate({name: entry.override})
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]  # by whichever name pydantic calls it
        [(path, message), *_] = explain(error, {place: entry.override}, {})
        raise EntryError(("override", *path[1:]), message) from error
    return FIELDS[name], entry.model_copy(update={"override": getattr(body, FIELDS[name])})
