"""Tools and the choice of them, as a chat has them."""

from collections.abc import Sequence
from typing import Any

from enginebay.contract.errors import InvalidRequestError
from enginebay_messages.request_bodies import (
    CustomTool,
    HostedTool,
    ToolChoiceParam,
    ToolParam,
)

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class OfferedTools:
    """`fields` of the chat, and the `places` of what is in them in the client's request.

    `ignored`: places of what has no effect, such as tools that run on Anthropic's servers.
    `InvalidRequestError` if the choice is one of these, or has nothing to choose from.
    """

    def __init__(self, tools: Sequence[ToolParam] | None, choice: ToolChoiceParam | None) -> None:
        self.fields: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.ignored: list[str] = []
        self._hosted: list[HostedTool] = []
        offered: list[dict[str, Any]] = []
        for position, tool in enumerate(tools or ()):
            place = f"tools[{position}]"
            if isinstance(tool, HostedTool):
                self._hosted.append(tool)
                self.ignored.append(place)
                continue
            self.places |= _places(f"tools[{len(offered)}]", place)
            offered.append(_function(tool))
            self.ignored += [f"{place}.{key}" for key in tool.unknown_keys]
        if offered:
            self.fields["tools"] = offered
        if choice:
            self._choose(choice)

    def _choose(self, choice: ToolChoiceParam) -> None:
        self.ignored += [f"tool_choice.{key}" for key in choice.unknown_keys]
        if choice.type == "tool":
            self._refuse_hosted(choice.name)
            function = {"name": choice.name}
            self.fields["tool_choice"] = {"type": "function", "function": function}
        else:
            if choice.type == "any" and not self.fields:
                raise InvalidRequestError(
                    "tool_choice 'any' needs tools that this server can offer: those with an "
                    "input_schema",
                    param="tool_choice",
                )
            self.fields["tool_choice"] = _CHOICES[choice.type]
        if choice.disable_parallel_tool_use:
            self.fields["parallel_tool_calls"] = False

    def _refuse_hosted(self, name: str | None) -> None:
        for tool in self._hosted:
            if tool.name == name:
                raise InvalidRequestError(
                    f"this server has no tool of the type {tool.type!r}: offer one with an "
                    "input_schema",
                    param="tool_choice",
                )


def _function(tool: CustomTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"function": {name: value for name, value in function.items() if value is not None}}


def _places(ours: str, theirs: str) -> dict[str, str]:
    function = f"{ours}.function"
    return {ours: theirs, function: theirs, f"{function}.parameters": f"{theirs}.input_schema"}
