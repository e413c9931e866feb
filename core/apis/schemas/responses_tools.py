"""Tools of `/v1/responses`, and which of them may be called."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from core.apis.schemas.responses_items import Name, type_of


class FunctionTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(BaseModel):
    """What the input of a custom tool looks like: any text, or what a grammar matches."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(max_length=65_536)] | None = None


class CustomTool(BaseModel):
    """A tool whose input is a text."""

    model_config = ConfigDict(extra="allow")

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class HostedTool(BaseModel):
    """A tool that OpenAI's servers run, and this one does not."""

    model_config = ConfigDict(extra="allow")

    type: Name


def _kind(value: Any) -> str:
    kind = type_of(value)
    return kind if kind in ("function", "custom", "namespace") else "hosted"


Callable = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind),
]


class NamespaceTool(BaseModel):
    """Tools under a name that their calls have beside their own."""

    model_config = ConfigDict(extra="allow")

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[list[Callable], Field(fail_fast=True)]


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind),
]


class ToolName(BaseModel):
    """A tool by its name; a hosted one by its type."""

    model_config = ConfigDict(extra="allow")

    type: Name
    name: Name | None = None
    namespace: str | None = None


class AllowedTools(BaseModel):
    """The tools that may be called, or with the mode `required` one of which must be."""

    model_config = ConfigDict(extra="allow")

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ToolName], Field(min_length=1, fail_fast=True)]


def _kind_of_choice(value: Any) -> str:
    if isinstance(value, str):
        return "a mode"
    return "a list" if type_of(value) == "allowed_tools" else "a name"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a mode")]
    | Annotated[ToolName, Tag("a name")]
    | Annotated[AllowedTools, Tag("a list")],
    Discriminator(_kind_of_choice),
]
