"""Bodies of TabbyAPI's routes that switch sampling overrides and chat templates."""

from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, Field, model_validator

from enginebay.config.field_types import ModelName
from enginebay.contract.errors import InvalidRequestError


class OverrideSwitchRequest(BaseModel):
    """A preset by its name, or overrides; of one model, or of all."""

    model: ModelName | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if not self.preset and self.overrides is None:
            raise InvalidRequestError("send the name of a preset, or overrides", param="preset")
        return self


class OverrideUnloadRequest(BaseModel):
    """Which model goes on without its preset; all if it does not say."""

    model: ModelName | None = None


class OverrideList(BaseModel):
    """The overrides in effect for a model, and the available presets."""

    selected_preset: str | None
    overrides: dict[str, Any]
    presets: list[str]


class TemplateList(BaseModel):
    """Names of chat templates."""

    object: Literal["list"] = "list"
    data: list[str]


class TemplateSwitchRequest(BaseModel):
    """A name that the list has."""

    model: ModelName | None = None
    prompt_template_name: Annotated[str, Field(min_length=1)] = Field(
        validation_alias=AliasChoices("prompt_template_name", "name")
    )


class TemplateUnloadRequest(BaseModel):
    """The model that returns to the template of its config."""

    model: ModelName | None = None
