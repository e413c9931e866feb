"""Unknown keys inside messages and tools that do not get into the prompt."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from enginebay.chat.plan.content_parts import read_keys
from enginebay.chat.plan.media_parts import picture_list
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.messages import Message
from enginebay.config.field_types import field_names
from enginebay.config.neutral_values import asks_for_nothing
from enginebay.models.template.features import TemplateFeatures

_REASONING = field_names("reasoning_content", Message.model_fields["reasoning_content"])


def unread_keys(body: ChatCompletionRequest, features: TemplateFeatures) -> list[str]:
    """The paths of unknown keys that the template does not read: of each key the first one."""
    read = {*features.template.keys, *_REASONING}
    found: dict[tuple[str, str], str] = {}
    for kind, place, unknown in _unknown(body, features):
        for key, value in (unknown or {}).items():
            if (kind, key) in found or asks_for_nothing(key, value):
                continue
            if kind == "parts" or (key not in read and kind not in features.written_whole):
                found[kind, key] = f"{place}.{key}"
    return list(found.values())


def _unknown(
    body: ChatCompletionRequest, features: TemplateFeatures
) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """The unknown keys of messages, tools and their parts, with the kind and path of each."""
    for position, message in enumerate(body.messages):
        place = f"messages[{position}]"
        read = {"images"} if picture_list(message) else set()
        yield "messages", place, _without(message.model_extra, read)
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            unknown = _without(part.model_extra, read_keys(part))
            yield "parts", f"{place}.content[{number}]", unknown
        for number, call in enumerate(message.tool_calls or ()):
            yield "calls", f"{place}.tool_calls[{number}]", call.model_extra
            yield "called", f"{place}.tool_calls[{number}].function", call.function.model_extra
    if not features.knows_tools:
        return
    for position, tool in enumerate(body.offered_tools):
        if body.old_names:
            yield "functions", f"functions[{position}]", tool.function.model_extra
        else:
            yield "tools", f"tools[{position}]", tool.model_extra
            yield "functions", f"tools[{position}].function", tool.function.model_extra


def _without(extra: Mapping[str, Any] | None, read: Collection[str]) -> Mapping[str, Any]:
    return {key: value for key, value in (extra or {}).items() if key not in read}
