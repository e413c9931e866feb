"""Requests to `/v1/chat/completions`: https://platform.openai.com/docs/api-reference/chat."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from core.chat.schemas.generation_request import GenerationBody
from core.config.field_types import aliased, json_text
from core.contract.errors import InvalidRequestError, UnsupportedParameterError


class ContentPart(BaseModel):
    """One part of a message's content; only `text` parts are understood so far."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class FunctionCall(BaseModel):
    """A call in the history. Arguments sent as an object become JSON text."""

    name: str
    arguments: Annotated[str, BeforeValidator(json_text)] = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """A message of the conversation so far."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = aliased("reasoning_content", "reasoning")


class FunctionDefinition(BaseModel):
    """What a function is called and which arguments it takes (JSON Schema)."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(BaseModel):
    """A function by its name: of a `tool_choice`, or `function_call` as an object."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]


class NamedToolChoice(BaseModel):
    """`tool_choice` that names the function to call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BaseModel):
    """The tools that may be called, or with the mode `required` one of which must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, fail_fast=True)]


class AllowedToolChoice(BaseModel):
    """`tool_choice` that allows some of the tools, which are all shown to the model."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "a mode"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"function": "a name", "allowed_tools": "a list"}.get(str(kind))


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a mode")]
    | Annotated[NamedToolChoice, Tag("a name")]
    | Annotated[AllowedToolChoice, Tag("a list")],
    Discriminator(
        _kind_of_choice,
        custom_error_type="tool_choice",
        custom_error_message="Input should be 'none', 'auto' or 'required', or an object of the "
        "type 'function' or 'allowed_tools'",
    ),
]


class Thinking(BaseModel):
    """`thinking` as an object, as Anthropic, DeepSeek and Zhipu have it."""

    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None


class ReasoningOptions(BaseModel):
    """`reasoning` as an object, as OpenRouter and TabbyAPI have it."""

    model_config = ConfigDict(extra="allow")

    effort: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    enabled: bool | None = None
    max_tokens: int | None = None


class ChatCompletionRequest(GenerationBody):
    """A chat completion request.

    OpenAI's old `functions`, `function_call` and messages of the role `function` are read as what
    replaced them; `functions` stays to tell that the answer has to use the old names, too.
    `echo`: the answer begins with the last message, if that is of the answer's role (vLLM).
    """

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Field(fail_fast=True)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    modalities: Annotated[list[str], Field(fail_fast=True)] | None = None
    web_search_options: dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = aliased("chat_template_kwargs", "template_vars")
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | str = False
    response_prefix: str | None = None
    add_special_tokens: bool | None = aliased("add_special_tokens", "add_bos_token")
    echo: bool = False
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    enable_thinking: bool | None = None
    thinking: bool | Thinking | None = None
    reasoning: ReasoningOptions | None = None
    thinking_budget: int | None = aliased(
        "reasoning_budget",
        "reasoning_budget_tokens",
        "thinking_budget",
        "thinking_token_budget",
        "thinking_budget_tokens",
    )
    reasoning_budget_message: Annotated[str, Field(max_length=10_000)] | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_text(self) -> Self:
        if set(self.modalities or ()) - {"text"}:
            raise UnsupportedParameterError(
                "this server supports text output only", param="modalities"
            )
        if self.web_search_options is not None:
            raise UnsupportedParameterError(
                "this server has no web search; offer one as a tool",
                param="web_search_options",
            )
        return self

    @model_validator(mode="after")
    def _users_say_something(self) -> Self:
        for position, message in enumerate(self.messages):
            if message.role == "user" and message.content is None:
                raise InvalidRequestError(
                    "a user message needs content", param=f"messages[{position}].content"
                )
        return self

    @model_validator(mode="after")
    def _read_reasoning_options(self) -> Self:
        """The separate fields take precedence over `reasoning`."""
        if options := self.reasoning:
            self.reasoning_effort = self.reasoning_effort or options.effort
            if self.enable_thinking is None:
                self.enable_thinking = options.enabled
            if self.thinking_budget is None:
                self.thinking_budget = options.max_tokens
        return self

    @model_validator(mode="after")
    def _functions_are_tools(self) -> Self:
        if self.functions is not None:
            if self.tools is not None:
                raise InvalidRequestError(
                    "send tools or functions (their old name), not both", param="functions"
                )
            self.tools = [Tool(type="function", function=each) for each in self.functions]
        if self.function_call is not None:
            if not self.functions:
                raise InvalidRequestError(
                    "function_call needs functions to choose from", param="function_call"
                )
            self.tool_choice = _tool_choice(self.function_call)
        _read_old_calls(self.messages)
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools the model may call: none with `tool_choice: none`."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def thinks(self) -> bool | None:
        """Whether reasoning is enabled; None if the request does not say."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if isinstance(self.thinking, Thinking):
            return {"enabled": True, "disabled": False}.get(self.thinking.type)
        return self.thinking

    @property
    def budget_tokens(self) -> int | None:
        """The reasoning budget in tokens, unlimited if negative; None: not set."""
        if self.thinking_budget is None and isinstance(self.thinking, Thinking):
            return self.thinking.budget_tokens
        return self.thinking_budget


def _tool_choice(
    function_call: Literal["none", "auto"] | NamedFunction,
) -> Literal["none", "auto"] | NamedToolChoice:
    if isinstance(function_call, str):
        return function_call
    named = {"type": "function", "function": {"name": function_call.name}}
    return NamedToolChoice.model_validate(named)


def _read_old_calls(messages: Sequence[Message]) -> None:
    """Calls by the old names, which had no ids, get some; answers to them are of the role `tool`.

    Nine digits, since the templates of Mistral's models take no other ids.
    """
    ids: dict[str, str] = {}
    for position, message in enumerate(messages):
        if message.function_call and not message.tool_calls:
            name = message.function_call.name
            ids[name] = f"{position:09d}"
            message.tool_calls = [ToolCall(id=ids[name], function=message.function_call)]
        elif message.role == "function":
            message.role = "tool"
            message.tool_call_id = message.tool_call_id or ids.get(message.name or "")
        message.function_call = None
