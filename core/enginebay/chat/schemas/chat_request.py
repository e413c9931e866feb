"""Requests to `/v1/chat/completions`: https://platform.openai.com/docs/api-reference/chat."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from enginebay.chat.schemas.constraint_fields import extra_keys
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.chat.schemas.messages import FunctionDefinition, Message, Tool, read_old_calls
from enginebay.config.field_types import Many, Scalars, aliased, default_if_null
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError


class NamedFunction(BaseModel):
    """A function by its name: of a `tool_choice`, or `function_call` as an object."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]


class NamedToolChoice(BaseModel):
    """`tool_choice` that names the function to call."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[Literal["function"], default_if_null("function")] = "function"
    function: NamedFunction


class AllowedTools(BaseModel):
    """The tools that may be called, or with the mode `required` one of which must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[Many[NamedToolChoice], Field(min_length=1)]


class AllowedToolChoice(BaseModel):
    """`tool_choice` that allows some of the tools, which are all shown to the model."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "a mode"
    kind = getattr(value, "type", None)
    if isinstance(value, dict):
        kind = value.get("type") or ("function" if "function" in value else None)
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


Function = Annotated[
    Annotated[FunctionDefinition, Tag("a definition")] | Annotated[dict[str, Any], Tag("anything")],
    Discriminator(lambda value: "anything" if _is_free(value) else "a definition"),
]
"""One of `functions`; what has no name is for templates alone, as in TabbyAPI."""


def _is_free(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and "name" not in value


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
    exclude: bool | None = None


class PredictionText(BaseModel):
    """A part of a `prediction`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """OpenAI's `prediction`: what most of the answer will be, such as a file that is edited."""

    model_config = ConfigDict(extra="allow")

    type: Literal["content"]
    content: str | Many[PredictionText]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(GenerationBody):
    """A chat completion request.

    `logprobs: N` is TabbyAPI's form of `top_logprobs`.
    OpenAI's old `functions`, `function_call` and messages of the role `function` are read as what
    replaced them.
    `overflow`: what becomes of a chat that is too long; `truncate_history: true` is `drop_oldest`.
    `strict_roles`: messages of users and the assistant are not joined for a chat template that
    wants alternating roles.
    `echo`: the answer begins with the last message, if that is of the answer's role (vLLM).
    """

    messages: Annotated[Many[Message], Field(min_length=1)]
    tools: Many[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Many[Function] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    modalities: Scalars[str] | None = None
    web_search_options: dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = aliased("chat_template_kwargs", "template_vars")
    documents: Many[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | str = False
    response_prefix: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    add_special_tokens: bool | None = aliased("add_special_tokens", "add_bos_token")
    echo: bool = False
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    enable_thinking: bool | None = None
    thinking: bool | Thinking | None = None
    think: bool | Annotated[str, Field(min_length=1, max_length=40)] | None = None
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
    trim_reasoning: bool | None = None
    strict_roles: bool = False
    overflow: Literal["error", "drop_oldest"] | None = None
    truncate_history: bool | None = None
    prediction: Prediction | None = None

    @model_validator(mode="before")
    @classmethod
    def _logprobs_as_a_number(cls, data: Any) -> Any:
        if not isinstance(data, dict) or type(data.get("logprobs")) is not int:
            return data
        number = data["logprobs"]
        if not 0 <= number <= 20:
            raise InvalidRequestError("logprobs: should be from 0 to 20", param="logprobs")
        top = {} if data.get("top_logprobs") is not None or not number else {"top_logprobs": number}
        return {**data, **top, "logprobs": number > 0}

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
            images = (message.model_extra or {}).get("images")
            if message.role == "user" and message.content is None and not images:
                raise InvalidRequestError(
                    "a user message needs content", param=f"messages[{position}].content"
                )
        return self

    @model_validator(mode="after")
    def _read_reasoning_options(self) -> Self:
        """The separate fields take precedence over `reasoning`."""
        if options := self.reasoning:
            if self.effort is None:
                self.reasoning_effort = options.effort
            if self.thinks is None:
                self.enable_thinking = options.enabled
            if self.include_reasoning is None and options.exclude:
                self.include_reasoning = False
            if self.thinking_budget is None:
                self.thinking_budget = options.max_tokens
        return self

    @model_validator(mode="after")
    def _functions_are_tools(self) -> Self:
        functions = None if self.free_functions else self.functions
        if functions is not None:
            if self.tools is not None:
                raise InvalidRequestError(
                    "send tools or functions (their old name), not both", param="functions"
                )
            self.tools = [Tool.model_validate({"function": each}) for each in functions]
        if self.function_call is not None:
            if not functions:
                raise InvalidRequestError(
                    "function_call needs functions to choose from", param="function_call"
                )
            self.tool_choice = _tool_choice(self.function_call)
        read_old_calls(self.messages)
        return self

    def unread_settings(self) -> Iterator[tuple[str, Any]]:
        """Unknown keys inside fields that are objects."""
        yield from super().unread_settings()
        for name in ("reasoning", "thinking", "tool_choice", "prediction"):
            settings = getattr(self, name)
            yield from extra_keys(name, settings if isinstance(settings, BaseModel) else None)

    @property
    def free_functions(self) -> list[dict[str, Any]] | None:
        """`functions` as they were sent, if they are for the template alone; else None."""
        if not any(isinstance(each, dict) for each in self.functions or ()):
            return None
        return [
            each if isinstance(each, dict) else each.model_dump(exclude_none=True)
            for each in self.functions or ()
        ]

    @property
    def old_names(self) -> bool:
        """Whether functions are offered by their old name, which the answer has to use, too."""
        return self.functions is not None and self.free_functions is None

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools the model may call: none with `tool_choice: none`."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def drops_oldest(self) -> bool | None:
        """Whether the oldest turns go if all do not fit; None if the request does not say."""
        return self.truncate_history if self.overflow is None else self.overflow == "drop_oldest"

    @property
    def thinks(self) -> bool | None:
        """Whether reasoning is enabled; None if the request does not say."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.thinking is None and isinstance(self.think, bool):
            return self.think
        if isinstance(self.thinking, Thinking):
            return {"enabled": True, "disabled": False}.get(self.thinking.type)
        return self.thinking

    @property
    def effort(self) -> str | None:
        """The reasoning effort: of `reasoning_effort`, or of `think`."""
        if self.reasoning_effort is None and isinstance(self.think, str):
            return self.think
        return self.reasoning_effort

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
