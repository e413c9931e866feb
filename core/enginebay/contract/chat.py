"""A chat for backends that take messages: plain JSON, nothing rendered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat request without its sampling, in the form of OpenAI's chat completions.

    `messages`: content is a text or a list of parts, images among them; tool calls have ids and
    arguments as JSON text.
    `tools`, `tool_choice`: only tools that may be called; a named one as an object.
    `response_format`: an object of the type `json_object` or `json_schema`; None: any text.
    `structured_outputs`: one of `regex`, `choice` and `grammar`, as vLLM has it.
    `reasoning_effort`, `enable_thinking`, `reasoning_budget` (tokens): None if unset; an effort
    also switches reasoning on or off.
    `chat_template_kwargs`: variables for a server that renders a chat template, those of the
    config and of `reasoning_effort` and `enable_thinking` among them.
    `chosen_params`: the fields of `SamplingParams` that the request or the config sets. Servers
    have defaults of their own for the others.
    """

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    tool_choice: Literal["none", "auto", "required"] | Json | None = None
    parallel_tool_calls: bool | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    reasoning_budget: int | None = None
    chat_template_kwargs: Json = field(default_factory=dict)
    chosen_params: frozenset[str] = frozenset()
