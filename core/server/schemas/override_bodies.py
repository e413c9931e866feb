"""What servers say of sampling fields of requests, in the names and values of requests."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from core.chat.schemas.field_types import field_names
from core.chat.schemas.sampling_request import SamplingBody
from core.config.messages import explain
from core.config.problems import KeyPath
from core.config.walk import nearest
from core.contract.errors import InvalidRequestError


def _one_if_more(value: Any) -> Any:
    """The example in TabbyAPI's documentation has a top_p of 1.5, which is off."""
    return 1 if isinstance(value, int | float) and value > 1 else value


class OverrideBody(SamplingBody):
    """The fields that can be overridden, under all their names."""

    top_p: Annotated[float, Field(ge=0, le=1), BeforeValidator(_one_if_more)] | None = None
    add_bos_token: bool | None = None


FIELDS = {
    alias: name
    for name, field in OverrideBody.model_fields.items()
    for alias in field_names(name, field)
}
"""The field that each name stands for."""


class EntryError(ValueError):
    """An override that is none; `path` says where in it."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class Entry(BaseModel):
    """An override as TabbyAPI writes it."""

    model_config = ConfigDict(extra="forbid")

    override: Any = None
    force: bool | None = None
    additive: bool | None = None


def read_entry(name: str, value: Any) -> tuple[str, Entry]:
    """The field an override is of, and the override with the value that requests would have."""
    if name not in FIELDS:
        raise EntryError((), f"unknown sampling param{nearest(name, sorted(FIELDS))}")
    if not isinstance(value, dict):
        raise EntryError((), "must be keys with values: override, force, additive")
    try:
        entry = Entry.model_validate(value)
    except ValidationError as error:
        [(path, message), *_] = explain(error, value, Entry.model_json_schema())
        raise EntryError(path, message) from error
    try:
        body = OverrideBody.model_validate({name: entry.override})
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]  # by whichever name pydantic calls it
        [(path, message), *_] = explain(error, {place: entry.override}, {})
        raise EntryError(("override", *path[1:]), message) from error
    return FIELDS[name], entry.model_copy(update={"override": getattr(body, FIELDS[name])})


class OverrideSwitchRequest(BaseModel):
    """A preset by its name, or overrides; of one model, or of all."""

    model: str | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if not self.preset and self.overrides is None:
            raise InvalidRequestError("send the name of a preset, or overrides", param="preset")
        return self


class OverrideUnloadRequest(BaseModel):
    """Which model goes on without its preset; all if it does not say."""

    model: str | None = None


class OverrideList(BaseModel):
    """What is in effect for a model, and the presets that there are."""

    selected_preset: str | None
    overrides: dict[str, Any]
    presets: list[str]
