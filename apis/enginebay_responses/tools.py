"""Tools of a request as functions of a chat, and whose call a call of one of them is."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay_responses.tool_bodies import (
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponseTool,
    ToolChoice,
    ToolName,
)

_NO_EFFECT = ("defer_loading", "async", "output_schema")


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as the client knows it. The input of a `custom` one is a text."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTools:
    """The functions of a chat that the tools of a request come to.

    `functions`: as chats have them. `known`: the tools, by the names of their functions. `named`:
    these names, by those of the tools and their namespaces; without a namespace, of any that has
    such a tool if there is none without one. `places`: the places of the functions in the request.
    `ignored`: the places of tools that run nowhere.
    """

    functions: Sequence[Mapping[str, Any]] = ()
    known: Mapping[str, Offered] = field(default_factory=dict)
    named: Mapping[tuple[str, str | None], str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def called(self, function: str) -> Offered:
        """The tool that a call of this function is one of."""
        return self.known.get(function) or Offered(function)

    def function(self, name: str, namespace: str | None) -> str:
        """The function that this tool is; one that is not offered any more is called as it is."""
        return self.named.get((name, namespace or None), name)

    def chosen(self, choice: ToolChoice) -> Any:
        """A chat's `tool_choice`; `InvalidRequestError` if it names what is not offered."""
        if isinstance(choice, str):
            return choice
        if isinstance(choice, ToolName):
            return self._named(choice)
        allowed = [self._named(each) for each in choice.tools]
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.mode, "tools": allowed},
        }

    def _named(self, tool: ToolName) -> dict[str, Any]:
        if tool.type not in ("function", "custom"):
            raise UnsupportedParameterError(
                f"this server does not run tools of the type {tool.type!r}", param="tool_choice"
            )
        function = self.named.get((tool.name or "", tool.namespace or None))
        if function is None or self.known[function].custom != (tool.type == "custom"):
            raise InvalidRequestError(
                f"there is no tool named {tool.name!r} of the type {tool.type!r}",
                param="tool_choice",
            )
        return {"type": "function", "function": {"name": function}}


def offered_tools(tools: Sequence[ResponseTool]) -> OfferedTools:
    """What these come to. `InvalidRequestError` for what cannot be enforced of a custom tool."""
    placed = list(_placed(tools))
    names = Counter(tool.name for _, tool, _ in placed if not _is_hosted(tool))
    functions: list[Mapping[str, Any]] = []
    known: dict[str, Offered] = {}
    named: dict[tuple[str, str | None], str] = {}
    others: dict[tuple[str, str | None], str] = {}
    places: dict[str, str] = {}
    ignored: list[str] = []
    for place, tool, namespace in placed:
        if not isinstance(tool, FunctionTool | CustomTool):
            ignored.append(place)
            continue
        clashes = namespace is not None and names[tool.name] > 1
        name = f"{namespace}__{tool.name}" if clashes else tool.name
        at = f"tools[{len(functions)}]"
        custom = isinstance(tool, CustomTool)
        known[name] = Offered(tool.name, namespace, custom)
        named[tool.name, namespace] = name
        if namespace is not None:
            others.setdefault((tool.name, None), name)
        places |= {at: place, f"{at}.function": place}
        if isinstance(tool, CustomTool):
            function = _taking_text(tool, place)
            places[f"{at}.function.parameters"] = f"{place}.format.definition"
            places[f"{at}.function.strict"] = f"{place}.format"
        else:
            function = tool.model_dump(exclude_none=True, exclude={"type", *_NO_EFFECT})
        functions.append({"type": "function", "function": {**function, "name": name}})
    return OfferedTools(
        functions=functions,
        known=known,
        named={**others, **named},
        places=places,
        ignored=tuple(ignored),
    )


def _placed(
    tools: Sequence[ResponseTool],
) -> Iterator[tuple[str, Any, str | None]]:
    """Every tool by itself: its place, itself, and the namespace it is in."""
    for position, tool in enumerate(tools):
        place = f"tools[{position}]"
        if not isinstance(tool, NamespaceTool):
            yield place, tool, None
            continue
        for inner, each in enumerate(tool.tools):
            yield f"{place}.tools[{inner}]", each, tool.name


def _is_hosted(tool: Any) -> bool:
    return not isinstance(tool, FunctionTool | CustomTool)


def _taking_text(tool: CustomTool, place: str) -> dict[str, Any]:
    """A function of one text, which a regular expression may constrain."""
    text: dict[str, Any] = {"type": "string"}
    form = tool.format
    constrained = form is not None and form.type == "grammar"
    if form is not None and constrained:
        if form.syntax != "regex" or form.definition is None:
            raise UnsupportedParameterError(
                "of the grammars of custom tools only those of the syntax regex can be enforced: "
                "send one, or leave `format` out and describe the input in the description",
                param=f"{place}.format",
            )
        text["pattern"] = f"^(?:{form.definition})$"
    function: dict[str, Any] = {
        "parameters": {
            "type": "object",
            "properties": {"input": text},
            "required": ["input"],
            "additionalProperties": False,
        }
    }
    if tool.description is not None:
        function["description"] = tool.description
    if constrained:
        function["strict"] = True
    return function


def arguments_of(text: str) -> str:
    """The arguments with which the function of a custom tool gets this text."""
    return json.dumps({"input": text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """The text in such arguments, which may have been cut off."""
    try:
        found = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    text = found.get("input", "") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
