"""What a request to the Messages API asks for, as a chat."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from enginebay.apis.extras import passed_on
from enginebay.apis.open_object import OpenObject
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.serving.asked import Asked, Names
from enginebay_messages.offered_tools import OfferedTools
from enginebay_messages.request_bodies import CountTokensRequest, MessagesRequest
from enginebay_messages.turns import Turns

_OWN_FORM = (
    *("max_tokens", "stop", "user", "response_format", "reasoning_effort", "enable_thinking"),
    *("thinking", "think", "thinking_budget"),
)
"""Fields of chats that this API says in its own way."""

_WITHOUT_EFFECT = frozenset(
    (
        *("cache_control", "service_tier", "speed", "inference_geo", "diagnostics"),
        *("user_profile_id", "workspace_id"),
    )
)
"""Fields about Anthropic's service, of whose answers nothing would be different here: prefixes are
cached without marks."""

_NOT_ASKED = _WITHOUT_EFFECT | MessagesRequest.model_fields.keys()

_NAMES = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking",
    "thinking_budget": "thinking.budget_tokens",
    "reasoning_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


def asked_message(body: MessagesRequest) -> Asked[ChatCompletionRequest]:
    """The chat that answers a request. `InvalidRequestError`s speak of the client's fields."""
    fields = {
        "max_tokens": max(1, body.max_tokens),
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "user": body.metadata.user_id if body.metadata else None,
    }
    unread = _unknown("metadata", body.metadata)
    return _asked(body, fields, unread, prompt_only=body.max_tokens == 0)


def asked_prompt(body: CountTokensRequest) -> Asked[ChatCompletionRequest]:
    """The chat whose prompt is that of a request. Fields about its answer may be in it, too."""
    return _asked(body)


def _asked(
    body: CountTokensRequest,
    more: Mapping[str, Any] = MappingProxyType({}),
    unread: Sequence[str] = (),
    *,
    prompt_only: bool = False,
) -> Asked[ChatCompletionRequest]:
    turns = Turns(body.system, body.messages)
    tools = OfferedTools(body.tools, body.tool_choice)
    extra = {k: v for k, v in (body.model_extra or {}).items() if k not in _NOT_ASKED}
    kept, said_otherwise = passed_on(extra, without=_OWN_FORM)
    places = {**_NAMES, **turns.places, **tools.places}
    fields: dict[str, Any] = {"model": body.model, "messages": turns.messages, **tools.fields}
    if turns.continued:
        fields["continue_final_message"] = True
        places["continue_final_message"] = turns.continued
    fields |= {**_thinking(body), **_form(body, places), **more}
    ignored = (
        *turns.ignored,
        *tools.ignored,
        *unread,
        *_unknown("thinking", body.thinking),
        *_unknown("output_config", body.output_config),
        *said_otherwise,
    )
    names = Names(places)
    with names.in_errors():
        sent = {name: value for name, value in fields.items() if value is not None}
        chat = read_body(ChatCompletionRequest, {**kept, **sent})
    return Asked(body=chat, names=names, ignored=ignored, prompt_only=prompt_only)


def _thinking(body: CountTokensRequest) -> dict[str, Any]:
    """Thinking is off unless it is asked for, and then never part of the text."""
    fields: dict[str, Any] = {
        "enable_thinking": body.thinks,
        "include_reasoning": body.thinks,
        "separate_reasoning": True,
    }
    if body.thinks and body.thinking:
        fields["thinking_budget"] = body.thinking.budget_tokens
    if body.output_config:
        fields["reasoning_effort"] = body.output_config.effort
    return fields


def _form(body: CountTokensRequest, places: dict[str, str]) -> dict[str, Any]:
    """The form of the answer; `places` gets what it is called."""
    form, place = body.output_format, "output_format"
    if body.output_config and body.output_config.format:
        form, place = body.output_config.format, "output_config.format"
    if form is None:
        return {}
    places["response_format"] = place
    places["response_format.json_schema"] = place
    schema = {**(form.model_extra or {}), "schema": form.schema_}
    return {"response_format": {"type": form.type, "json_schema": schema}}


def _unknown(place: str, settings: OpenObject | None) -> list[str]:
    """Unknown keys of an object in the request, by their paths."""
    return [f"{place}.{key}" for key in settings.unknown_keys] if settings else []
