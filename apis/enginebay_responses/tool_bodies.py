"""Tools of `/v1/responses`, and which of them may be called."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from enginebay.apis.open_object import OpenObject
from enginebay.apis.type_of import type_of
from enginebay.config.field_types import Many, NullIsUnset
from enginebay_responses.item_bodies import Name


class FunctionTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(OpenObject):
    """What the input of a custom tool looks like: any text, or what a grammar matches."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(max_length=65_536)] | None = None


class CustomTool(OpenObject):
    """A tool whose input is a text; all are offered at once, whatever `defer_loading` says."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: Any = None


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


class NamespaceTool(OpenObject):
    """Tools under a name that their calls have beside their own."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Many[Callable]


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind),
]


class ToolName(OpenObject):
    """A tool by its name; a hosted one by its type."""

    type: Name
    name: Name | None = None
    namespace: str | None = None


class AllowedTools(OpenObject, NullIsUnset):
    """The tools that may be called, or with the mode `required` one of which must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[Many[ToolName], Field(min_length=1)]


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
