"""Bodies of TabbyAPI's routes for chat templates."""

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, Field


class TemplateList(BaseModel):
    """Names of chat templates."""

    object: Literal["list"] = "list"
    data: list[str]


class TemplateSwitchRequest(BaseModel):
    """A name that the list has."""

    model: str | None = None
    prompt_template_name: Annotated[str, Field(min_length=1)] = Field(
        validation_alias=AliasChoices("prompt_template_name", "name")
    )


class TemplateUnloadRequest(BaseModel):
    """Which model goes back to the template that its config says."""

    model: str | None = None
