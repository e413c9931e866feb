"""Messages and tools of chat requests, with what other APIs have in them.

Keys that are not known here are kept: chat templates, and models that take messages, may read them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from enginebay.config.field_types import Many, aliased, default_if_null, json_text


class ContentPart(BaseModel):
    """One part of a message's content.

    `thinking` is its thought, of Anthropic a text, of Mistral a list of text parts; `reasoning`,
    `summary` and `content` are those of other APIs, `signature` is Anthropic's and means nothing
    here.
    """

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, default_if_null("text")] = "text"
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None
    reasoning: Any = None
    summary: Any = None
    content: Any = None
    signature: Any = None

    @property
    def is_thought(self) -> bool:
        """Whether it is reasoning, and no text of the message."""
        return self.type in ("thinking", "reasoning")


class FunctionCall(BaseModel):
    """A call in the history. Arguments sent as an object become JSON text."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Annotated[str, BeforeValidator(json_text), default_if_null("{}")] = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier assistant message; `index` is left over from a stream."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: Annotated[Literal["function"], default_if_null("function")] = "function"
    index: Any = Field(None, exclude=True)
    function: FunctionCall


class Message(BaseModel):
    """A message of the conversation so far."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = "user"
    content: str | Many[ContentPart] | None = None
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = aliased("reasoning_content", "reasoning", "thinking")


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

    type: Annotated[Literal["function"], default_if_null("function")] = "function"
    function: FunctionDefinition


def read_old_calls(messages: Sequence[Message]) -> None:
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
