"""Requests to `/v1/messages` and `/v1/messages/count_tokens`.

Fields of OpenAI's chats and of other servers are kept, too: SDKs send them as `extra_body`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from enginebay.apis.open_object import OpenObject
from enginebay.apis.type_of import type_of
from enginebay.config.field_types import Many, ModelName, NullIsUnset, Scalars
from enginebay.contract.errors import InvalidRequestError
from enginebay_messages.blocks import InputMessage, TextBlock


class CustomTool(OpenObject):
    """A function of the client.

    `eager_input_streaming` is what happens anyway: arguments are streamed as they are written.
    """

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None


class HostedTool(OpenObject):
    """A tool that Anthropic runs, or knows the arguments of; here it is not offered."""

    type: str
    name: str | None = None


def _kind_of_tool(value: Any) -> str:
    kind = type_of(value)
    return "hosted" if isinstance(kind, str) and kind != "custom" else "a function"


ToolParam = Annotated[
    Annotated[CustomTool, Tag("a function")] | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind_of_tool),
]


class ToolChoiceParam(OpenObject):
    """Which tools the answer may or must call; `name` is that of the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(min_length=1)] | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _a_tool_has_a_name(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise InvalidRequestError(
                "tool_choice of the type tool needs the name of one", param="tool_choice.name"
            )
        return self


class ThinkingConfig(OpenObject):
    """Whether to think, and whether the thought is told or `omitted`."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(OpenObject):
    """JSON that is valid against a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]


class OutputConfig(OpenObject):
    """What the answer is to be like."""

    effort: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    format: JsonFormat | None = None


class RequestMetadata(OpenObject):
    """Whom a request is for."""

    user_id: str | None = None


class CountTokensRequest(NullIsUnset):
    """What comes into a prompt. `output_format` is the former name of `output_config.format`."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: Annotated[ModelName, Field(min_length=1)]
    messages: Annotated[Many[InputMessage], Field(min_length=1)]
    system: str | Many[TextBlock] | None = None
    tools: Many[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None

    @property
    def thinks(self) -> bool:
        """Whether thinking is on; it is off unless asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"


class MessagesRequest(CountTokensRequest):
    """A request for an answer. With a `max_tokens` of 0 the prompt is only read, and so cached."""

    max_tokens: Annotated[int, Field(ge=0)]
    stop_sequences: Scalars[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: RequestMetadata | None = None
