"""What a request of `/api/chat` asks for, as a chat."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.serving.asked import Asked, Names
from enginebay_ollama.options import generation_fields
from enginebay_ollama.request_bodies import OllamaChat, OllamaGeneration, OllamaMessage


def asked_chat(body: OllamaChat, model: str) -> Asked[ChatCompletionRequest]:
    """The chat that a conversation is, with the model of this name."""
    messages = chat_messages(body.messages)
    places = {
        f"messages[{at}].{ours}": f"messages[{at}].{theirs}"
        for at in range(len(messages))
        for ours, theirs in (("reasoning_content", "thinking"), ("name", "tool_name"))
    }
    more = {"tools": body.tools} if body.tools else {}
    return chat_of(body, {"model": model, "messages": messages, **more}, places)


def chat_of(
    body: OllamaGeneration, chat: dict[str, Any], places: dict[str, str]
) -> Asked[ChatCompletionRequest]:
    """A chat with this model and these messages, for what else a request says.

    `places`: the client's names of what is in `chat`.
    """
    asked = generation_fields(body)
    shown = {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs, "think": body.think}
    # Thought has a field of its own, whatever the config has for others.
    fields = {**asked.fields, **chat, **shown, "separate_reasoning": True}
    if body.truncate is not None:
        fields["overflow"] = "drop_oldest" if body.truncate else "error"
        places = {"overflow": "truncate", **places}
    names = Names({**asked.places, **places})
    with names.in_errors():
        read = read_body(ChatCompletionRequest, fields)
    return Asked(body=read, names=names, ignored=tuple(asked.ignored))


def chat_messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """The messages of a chat. Calls without an id get one.

    A result is that of the call with its id, else of the first one with its name that has no result
    yet, else of the first one that has none.
    """
    known = {call.id for message in messages for call in message.tool_calls or ()}
    # Nine digits, since the templates of Mistral's models take no other ids.
    new_ids = (f"{number:09d}" for number in count() if f"{number:09d}" not in known)
    made: list[dict[str, Any]] = []
    waiting: dict[str, str] = {}  # names of the functions, by the ids of calls without result
    for message in messages:
        if message.tool_calls:
            waiting = {}
        made.append(_chat_message(message, new_ids, waiting))
    return made


def _chat_message(
    message: OllamaMessage, new_ids: Iterator[str], waiting: dict[str, str]
) -> dict[str, Any]:
    sent = message.model_dump(exclude_none=True, exclude={"tool_name", "tool_calls"})
    if message.tool_calls:
        sent["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        for call in sent["tool_calls"]:
            call["id"] = call.get("id") or next(new_ids)
            waiting[call["id"]] = call["function"]["name"]
    if message.tool_name:
        sent["name"] = message.tool_name
    if message.role == "tool" and (id := _answered(message, waiting)):
        sent["tool_call_id"] = id
        waiting.pop(id, None)
    return sent


def _answered(message: OllamaMessage, waiting: dict[str, str]) -> str | None:
    """The id of the call whose result this is; None if nothing was called."""
    if message.tool_call_id:
        return message.tool_call_id
    named = (id for id, name in waiting.items() if name == message.tool_name)
    return next(named, next(iter(waiting), None))
