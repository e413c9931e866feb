"""From messages to prompt text: what every chat template can rely on."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from core.chat.template import ChatTemplate
from core.errors import InvalidRequestError
from core.schemas.chat import ChatCompletionRequest, ContentPart, Message

logger = logging.getLogger(__name__)


def render_prompt(body: ChatCompletionRequest, template: ChatTemplate) -> str:
    """The prompt of a chat request.

    Tools stay out of it when `tool_choice` is `none`: a model that does not see them does not call
    them.
    """
    tools = [tool.model_dump(exclude_none=True) for tool in body.offered_tools]
    return template.render(
        template_messages(body.messages, knows_developer=template.knows_developer_role),
        tools=tools or None,
        add_generation_prompt=body.add_generation_prompt,
        variables=body.chat_template_kwargs,
    )


def template_messages(
    messages: Sequence[Message], *, knows_developer: bool = True
) -> list[dict[str, Any]]:
    """Messages as templates expect them.

    Without null fields, content always a string, tool-call arguments as objects (templates iterate
    them), `developer` as `system` for templates that do not know it.
    """
    return [_template_message(i, m, knows_developer) for i, m in enumerate(messages)]


def _template_message(position: int, message: Message, knows_developer: bool) -> dict[str, Any]:
    fields = message.model_dump(exclude_none=True, exclude={"content"})
    fields["content"] = _text(message.content, param=f"messages[{position}].content")
    if message.role == "developer" and not knows_developer:
        fields["role"] = "system"
    for call in fields.get("tool_calls", []):
        call["function"]["arguments"] = _arguments(call["function"])
    return fields


def _text(content: str | Sequence[ContentPart] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type != "text":
            raise InvalidRequestError(
                f"this model takes text only; a content part of type {part.type!r} cannot be used",
                param=f"{param}[{i}].type",
            )
        if part.text is None:
            raise InvalidRequestError("the text part has no `text`", param=f"{param}[{i}].text")
    return "".join(part.text or "" for part in content)


def _arguments(function: Mapping[str, Any]) -> Any:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        logger.warning("arguments of an earlier call of %r are not JSON", function["name"])
        return arguments
