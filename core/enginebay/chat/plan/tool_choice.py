"""Which functions an answer may call, must call, and how the model writes that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.chat.plan.content_grammar import relaxed_schema, schema_problem
from enginebay.chat.schemas.chat_request import (
    AllowedToolChoice,
    ChatCompletionRequest,
    NamedToolChoice,
)
from enginebay.chat.schemas.messages import FunctionDefinition
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import InvalidRequestError, SchemaError
from enginebay.contract.formats import CallGrammar, ToolFormat

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_ARGUMENTS = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallRules:
    """The tool-calling rules of a request.

    `functions`: those that may be called, by their paths in the body. `forced`: the answer consists
    of calls only. `named`: the request names the function, so a call does not change
    `finish_reason`. `parallel`: there may be more than one call.
    """

    functions: Mapping[str, FunctionDefinition]
    forced: bool = False
    named: bool = False
    parallel: bool = True


def call_rules(body: ChatCompletionRequest) -> CallRules:
    """`tool_choice` and `parallel_tool_calls`, or their old names, of a request.

    `InvalidRequestError` for a choice without tools to choose from, and for different functions
    with the same name.
    """
    place = "functions[{}]" if body.old_names else "tools[{}].function"
    offered = {
        place.format(position): tool.function for position, tool in enumerate(body.offered_tools)
    }
    _check_names(offered)
    parallel = body.parallel_tool_calls is not False and not body.old_names
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice):
        functions = _named(body, offered, [choice])
        return CallRules(functions, forced=True, named=True, parallel=False)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        functions = _named(body, offered, allowed.tools)
        return CallRules(functions, forced=allowed.mode == "required", parallel=parallel)
    if choice == "required" and not offered:
        raise InvalidRequestError("tool_choice 'required' needs tools", param="tool_choice")
    return CallRules(offered, forced=choice == "required", parallel=parallel)


def _check_names(offered: Mapping[str, FunctionDefinition]) -> None:
    """Raise where it is ambiguous which schema a call must follow."""
    first: dict[str, FunctionDefinition] = {}
    for place, each in offered.items():
        other = first.setdefault(each.name, each)
        if (other.parameters, bool(other.strict)) != (each.parameters, bool(each.strict)):
            raise InvalidRequestError(
                f"two different functions are named {each.name!r}",
                param=f"{place}.name",
            )


def _named(
    body: ChatCompletionRequest,
    offered: Mapping[str, FunctionDefinition],
    choices: Sequence[NamedToolChoice],
) -> dict[str, FunctionDefinition]:
    names = {choice.function.name for choice in choices}
    functions = {place: each for place, each in offered.items() if each.name in names}
    if unknown := names - {each.name for each in functions.values()}:
        listed = ", ".join(repr(name) for name in sorted(unknown))
        raise InvalidRequestError(
            f"there is no tool named {listed}",
            param="tool_choice" if body.function_call is None else "function_call",
        )
    return functions


def reads_calls(body: ChatCompletionRequest, config: ModelConfig) -> bool:
    """Whether the answer is read for calls: tools are offered, or `parse_calls` is `always`.

    Constrained content has no calls, nor has an answer to `tool_choice: none`.
    """
    if body.tools or config.parse_calls == "offered":
        return bool(body.offered_tools)
    return body.tool_choice in (None, "auto") and not body.asked_constraint()


def argument_schemas(body: ChatCompletionRequest) -> dict[str, Mapping[str, Any]]:
    """The schemas of the arguments of all offered functions, as they were sent."""
    return {tool.function.name: tool.function.parameters or {} for tool in body.offered_tools}


def call_grammar(rules: CallRules, format: ToolFormat) -> tuple[CallGrammar | None, list[str]]:
    """The grammar of calls under these rules, and the paths of what it does not enforce.

    Forced calls, and those of `strict` functions, follow their schemas exactly, or there is an
    `InvalidRequestError`; for others what cannot be enforced is left out of the schema, since users
    cannot fix the schemas of tool servers.
    """
    loose: list[str] = []
    schemas: dict[str, Mapping[str, Any]] = {}
    for place, function in rules.functions.items():
        exact = rules.forced or bool(function.strict)
        schema, problem = _arguments(function)
        problem = problem or schema_problem(schema)
        if problem and exact:
            raise _refusal(place, problem)
        if problem:
            schema = _arguments_of(relaxed_schema(schema))
            loose.append(f"{place}.parameters")
        schemas[function.name] = schema
    try:
        return format.grammar(schemas, parallel=rules.parallel), loose
    except SchemaError:
        loose += _fit(rules, format, schemas)
        return format.grammar(schemas, parallel=rules.parallel) if schemas else None, loose


def _fit(rules: CallRules, format: ToolFormat, schemas: dict[str, Mapping[str, Any]]) -> list[str]:
    """Allow any object where a format cannot express a function's arguments; returns their paths.

    A function with a name that the format cannot write is left out.
    """
    loose = []
    for place, function in rules.functions.items():
        name = function.name
        if name not in schemas or not (problem := _format_problem(format, name, schemas[name])):
            continue
        unwritable = _format_problem(format, name, _ANY_ARGUMENTS)
        field = "name" if unwritable else "parameters"
        if rules.forced or function.strict:
            raise _refusal(place, unwritable or problem, field)
        if unwritable:
            del schemas[name]
        else:
            schemas[name] = _ANY_ARGUMENTS
        loose.append(f"{place}.{field}")
    return loose


def _format_problem(format: ToolFormat, name: str, schema: Mapping[str, Any]) -> SchemaError | None:
    """Why a format cannot express calls of a function."""
    try:
        format.grammar({name: schema}, parallel=False)
    except SchemaError as error:
        return error
    return None


def _arguments(function: FunctionDefinition) -> tuple[dict[str, Any], SchemaError | None]:
    """The schema of a function's arguments, which are an object."""
    if function.parameters is None:
        return _NO_ARGUMENTS, None
    schema = _arguments_of(function.parameters)
    if schema["type"] != "object":
        return {"type": "object"}, SchemaError(
            "/type", "the arguments of a function must be an object"
        )
    return schema, None


def _arguments_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "object")
    if isinstance(kind, list) and "object" in kind:
        kind = "object"
    return {**schema, "type": kind}


def _refusal(place: str, error: SchemaError, field: str = "parameters") -> InvalidRequestError:
    param = f"{place}.{field}"
    reason = error if field == "parameters" else error.reason
    return InvalidRequestError(f"{param}: {reason}", param=param)
