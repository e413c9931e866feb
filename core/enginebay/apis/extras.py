"""Fields of other servers in the bodies of these APIs, which SDKs send as `extra_body`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.config.field_types import field_names
from enginebay.config.neutral_values import asks_for_nothing

_OWN_FORM = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    *("modalities", "web_search_options", "logprobs", "top_logprobs", "prompt_logprobs", "n"),
    *("model", "stream", "stream_options", "echo", "add_generation_prompt", "response_prefix"),
    *("continue_final_message", "return_token_ids", "return_tokens_as_token_ids", "reasoning"),
    *("include_reasoning", "separate_reasoning", "timings_per_token", "return_progress"),
)
"""Fields of chats that each of these APIs says in its own way, or has no place for in answers."""


def passed_on(
    sent: Mapping[str, Any] | None, *, without: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The fields that go into the chat or completion request as they are, and names of the others.

    What no API knows is passed on, too: the plan says that it has no effect. `without`: more fields
    that have a form of their own, by any of their names.
    """
    kept: dict[str, Any] = {}
    ignored = []
    own = {*_OWN_FORM, *_aliases(without)}
    for name, value in (sent or {}).items():
        if name not in own:
            kept[name] = value
        elif not asks_for_nothing(name, value):
            ignored.append(name)
    return kept, ignored


def _aliases(names: Collection[str]) -> Iterator[str]:
    for name in names:
        field = ChatCompletionRequest.model_fields.get(name)
        yield from field_names(name, field) if field else (name,)
