"""Requests to `/v1/responses`: https://platform.openai.com/docs/api-reference/responses/create."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from enginebay.apis.open_object import OpenObject
from enginebay.config.field_types import Many, ModelName, NullIsUnset, Scalars
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay_responses.item_bodies import Item
from enginebay_responses.tool_bodies import ResponseTool, ToolChoice


class TextFormat(OpenObject, NullIsUnset):
    """What the text of the answer has to be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            raise InvalidRequestError(
                "a format of the type json_schema needs a schema", param="text.format.schema"
            )
        return self


class TextOptions(OpenObject):
    """`text`: the form of the answer, and how long it is meant to be."""

    format: TextFormat | None = None
    verbosity: Annotated[str, Field(max_length=40)] | None = None


class ReasoningOptions(OpenObject):
    """`reasoning`: how much the model thinks, and whether that is told as a summary.

    `context` and `mode` are about OpenAI's own models, and have no effect.
    """

    effort: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None
    context: Any = None
    mode: Any = None

    @property
    def summarizes(self) -> bool:
        """Whether thought is told as a summary."""
        return (self.summary or self.generate_summary or "none") != "none"


class StreamOptions(OpenObject):
    """`stream_options`; nothing is padded, whatever `include_obfuscation` says."""

    include_obfuscation: Any = None


_ITEMS = Many[Item]


class ResponsesRequest(NullIsUnset):
    """A request for a response.

    What is not known here is passed on: samplers of this server work through `extra_body`. Fields
    about OpenAI's own servers (`service_tier`, `prompt_cache_key` …) have no effect.
    """

    model_config = ConfigDict(extra="allow")

    model: ModelName | None = None
    input: str | _ITEMS
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    tools: Many[ResponseTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    store: bool = True
    background: bool = False
    background_options: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Scalars[str] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    prompt: Any = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    client_metadata: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None

    @model_validator(mode="after")
    def _refuse_what_there_is_not(self) -> Self:
        if self.previous_response_id is not None and self.conversation is not None:
            raise InvalidRequestError(
                "send previous_response_id or conversation, not both", param="previous_response_id"
            )
        if self.conversation is not None:
            raise UnsupportedParameterError(
                "this server keeps no conversations: send previous_response_id, or all items as "
                "input",
                param="conversation",
            )
        if self.background:
            raise UnsupportedParameterError(
                "this server answers nothing in the background: leave it out", param="background"
            )
        if self.prompt is not None:
            raise UnsupportedParameterError(
                "this server has no stored prompts: send instructions and input", param="prompt"
            )
        return self

    @property
    def includes_encrypted_thought(self) -> bool:
        """Whether thought is also told as opaque text, to be sent back."""
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with the logprobs of its tokens."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    @property
    def summarizes(self) -> bool:
        """Whether thought is told as a summary."""
        return self.reasoning is not None and self.reasoning.summarizes
