"""A request for a response, as a request for a chat."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from enginebay.apis.extras import passed_on
from enginebay.apis.open_object import unknown_paths
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.config.neutral_values import asks_for_nothing
from enginebay.contract.errors import InvalidRequestError
from enginebay.serving.asked import Asked, Names
from enginebay_responses.history import History
from enginebay_responses.input import Placed, all_items, kept_form, unread
from enginebay_responses.request_bodies import ResponsesRequest, TextFormat
from enginebay_responses.store.store import ResponseStore
from enginebay_responses.tools import OfferedTools, offered_tools

_SAID_OTHERWISE = ("max_tokens", "reasoning_effort", "response_format")
_PLACES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "chat_template_kwargs.verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What a request for a response comes to.

    `sent`: its body, as an answer tells it. `input`: its own items as they are kept. `owner`: whose
    it is. `chat`: the same as a chat, whose messages are those of `history`.
    """

    body: ResponsesRequest
    sent: Mapping[str, Any]
    input: Sequence[dict[str, Any]]
    owner: str | None
    tools: OfferedTools
    history: History
    chat: Asked[ChatCompletionRequest]


async def read_request(
    body: ResponsesRequest, store: ResponseStore | None, owner: str | None
) -> ReadRequest:
    """Read a request in the name of an API key; errors name the request's own fields."""
    items = await all_items(body, store, owner)
    return await asyncio.to_thread(_read, body, items, owner)


def _read(body: ResponsesRequest, items: Sequence[Placed], owner: str | None) -> ReadRequest:
    sent = _as_sent(body)
    tools = offered_tools(body.tools or ())
    own = [placed for placed in items if placed.own]
    history = _history(body, items, tools)
    extra, ignored = passed_on(body.model_extra, without=_SAID_OTHERWISE)
    cut = {} if body.truncation is None else {"overflow": "truncation"}
    names = Names({**_PLACES, **cut, **history.tools.places, **history.places()})
    with names.in_errors():
        fields = {**extra, **_fields(body, tools, extra)}
        fields["messages"] = [told.message for told in history.messages]
        chat = read_body(ChatCompletionRequest, fields)
    ignored = [*_unread(body), *tools.ignored, *unread(own), *ignored]
    return ReadRequest(
        body=body,
        sent=sent,
        input=[kept_form(placed.item) for placed in own],
        owner=owner,
        tools=tools,
        history=history,
        chat=Asked(body=chat, names=names, ignored=tuple(ignored)),
    )


def _as_sent(body: ResponsesRequest) -> dict[str, Any]:
    """The body, which has to be JSON that can be sent back."""
    try:
        sent = body.model_dump(exclude_unset=True, by_alias=True)
        json.dumps(sent, allow_nan=False, ensure_ascii=False).encode()
        to_json([sent])  # as deep as in an event
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "the body cannot be told in an answer: it has a number that is none, or is nested too "
            "deeply"
        ) from error
    return sent


def _history(body: ResponsesRequest, items: Sequence[Placed], tools: OfferedTools) -> History:
    history = History(tools)
    if body.instructions is not None:
        history.instruct(body.instructions)
    for placed in items:
        history.add(placed.item, placed.place)
    return history


def _fields(
    body: ResponsesRequest, tools: OfferedTools, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of the chat that are said in a way of this API's own."""
    fields: dict[str, Any] = {
        "model": body.model,
        "stream": body.stream,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "user": body.user,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tools": tools.functions or None,
        "separate_reasoning": True,
    }
    if body.tool_choice is not None:
        fields["tool_choice"] = tools.chosen(body.tool_choice)
    if body.truncation is not None:
        fields["overflow"] = "drop_oldest" if body.truncation == "auto" else "error"
    if body.wants_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    if body.text is not None and body.text.verbosity is not None:
        variables = extra.get("chat_template_kwargs") or {}
        if isinstance(variables, dict):
            fields["chat_template_kwargs"] = {"verbosity": body.text.verbosity, **variables}
    return fields


def _response_format(format: TextFormat) -> dict[str, Any]:
    if format.type != "json_schema":
        return {"type": format.type}
    named = format.model_dump(exclude_none=True, exclude={"type"}, by_alias=True)
    return {"type": "json_schema", "json_schema": named}


def _unread(body: ResponsesRequest) -> list[str]:
    """Names of what has no effect here and might be missed."""
    services = ("context_management", "moderation")
    named = [name for name in services if not asks_for_nothing(name, getattr(body, name))]
    objects = ("reasoning", "text", "tools", "tool_choice", "stream_options")
    return [
        *named,
        *(path for name in objects for path in unknown_paths(name, getattr(body, name))),
    ]
