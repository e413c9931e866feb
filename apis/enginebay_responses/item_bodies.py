"""Items of the input of `/v1/responses`.

Keys that are not known here are kept: items are listed as they were sent.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic import TypeAdapter as Adapter

from enginebay.apis.type_of import type_of
from enginebay.config.field_types import Many, default_if_null, json_text

Parts = Many[dict[str, Any]]
Name = Annotated[str, Field(min_length=1)]


class InputItem(BaseModel):
    """What every item may have; most clients send the ids and states of earlier answers back."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    status: str | None = None


class MessageItem(InputItem):
    """A message, of which nobody has to say that it is one."""

    type: Annotated[Literal["message"], default_if_null("message")] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    phase: str | None = None


class ReasoningItem(InputItem):
    """The thought in front of the message or the call that follows."""

    type: Literal["reasoning"]
    summary: Parts | None = None
    content: Parts | None = None
    encrypted_content: str | None = None


class FunctionCallItem(InputItem):
    """A call of an earlier answer; its output has the same `call_id`."""

    type: Literal["function_call"]
    call_id: Name
    name: str
    namespace: str | None = None
    arguments: Annotated[str, BeforeValidator(json_text), default_if_null("{}")] = "{}"


class CustomCallItem(InputItem):
    """A call of a tool whose input is a text."""

    type: Literal["custom_tool_call"]
    call_id: Name
    name: str
    namespace: str | None = None
    input: str


class CallOutputItem(InputItem):
    """What a call came to."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Name
    output: str | Parts


class ItemReference(InputItem):
    """An item of a stored answer, or of its input."""

    type: Annotated[Literal["item_reference"], default_if_null("item_reference")] = "item_reference"
    id: Name


class HostedItem(InputItem):
    """What tools of OpenAI's own servers left in the history."""

    type: str


_KINDS = {
    "message": "a message",
    "reasoning": "a thought",
    "function_call": "a call",
    "custom_tool_call": "a custom call",
    "function_call_output": "an output",
    "custom_tool_call_output": "an output",
    "item_reference": "a reference",
}

_HOSTED = (
    *("web_search_call", "file_search_call", "computer_call", "computer_call_output"),
    *("image_generation_call", "code_interpreter_call", "local_shell_call", "shell_call"),
    *("local_shell_call_output", "shell_call_output", "apply_patch_call"),
    *("apply_patch_call_output", "mcp_list_tools", "mcp_approval_request"),
    *("mcp_approval_response", "mcp_call", "tool_search_call", "tool_search_output"),
    *("additional_tools", "compaction", "compaction_trigger", "configuration_update"),
    *("program", "program_output"),
)


def _kind(value: Any) -> str:
    kind = type_of(value)
    if kind is None:  # of what is no object, too: the error of a message says so
        refers = isinstance(value, dict) and "id" in value and "role" not in value
        return "a reference" if refers else "a message"
    return _KINDS.get(kind, "hosted") if isinstance(kind, str) else "hosted"


def _known(value: Any) -> Any:
    kind = type_of(value)
    if kind not in _HOSTED:
        listed = ", ".join(_KINDS)
        raise ValueError(f"there is no item of the type {str(kind)[:100]!r}; there are {listed}")
    return value


Item = Annotated[
    Annotated[MessageItem, Tag("a message")]
    | Annotated[ReasoningItem, Tag("a thought")]
    | Annotated[FunctionCallItem, Tag("a call")]
    | Annotated[CustomCallItem, Tag("a custom call")]
    | Annotated[CallOutputItem, Tag("an output")]
    | Annotated[ItemReference, Tag("a reference")]
    | Annotated[HostedItem, BeforeValidator(_known), Tag("hosted")],
    Discriminator(_kind),
]

ITEM: Adapter[Item] = Adapter(Item)
"""Items that were stored, as JSON values, to items."""
