"""`continue_final_message`: a prompt that ends inside the last message.

The template renders the message followed by a mark, and the prompt is the text before the mark. The
rules follow transformers' `apply_chat_template`.
"""

from collections.abc import Mapping
from typing import Any

from enginebay.contract.errors import InvalidRequestError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def mark_final_message(chat: list[dict[str, Any]], field: str, source: str) -> None:
    """Append the mark to the last message's `field`, which the template's source must mention."""
    message = chat[-1]
    value = message.get(field)
    if value is None:
        raise _refusal(f"the last message has no {field!r} to continue")
    fields = [field]
    if field in REASONING_FIELDS:  # under several names; the template reads one of them
        fields = [name for name in REASONING_FIELDS if message.get(name) == value]
    if not any(name in source for name in fields):
        raise _refusal(f"the chat template does not read {field!r}")
    if isinstance(value, str):
        message.update(dict.fromkeys(fields, value + _MARK))
    elif isinstance(value, list):
        message[field] = _marked_parts(value)
    else:
        raise _refusal(f"{field!r} of the last message is not text")


def cut_at_mark(text: str, message: Mapping[str, Any], field: str) -> str:
    """The prompt up to the mark. `message`: the last one, as it was before it was marked."""
    final = _text(message, field)
    if final.strip() not in text or _MARK.strip() not in text:
        raise _refusal(f"the chat template leaves out or changes {field!r} of the last message")
    at = text.rindex(_MARK.strip())
    # A template that trims messages has trimmed the mark, and what was before it counts as trimmed.
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


def _marked_parts(parts: list[Any]) -> list[Any]:
    at = _last_text(parts)
    marked = {**parts[at], "text": parts[at]["text"] + _MARK}
    return [*parts[:at], marked, *parts[at + 1 :]]


def _text(message: Mapping[str, Any], field: str) -> str:
    value = message.get(field)
    if value is None:
        value = next((message[name] for name in REASONING_FIELDS if message.get(name)), "")
    return str(value[_last_text(value)]["text"]) if isinstance(value, list) else str(value)


def _last_text(parts: list[Any]) -> int:
    for at in range(len(parts) - 1, -1, -1):
        if "text" in parts[at]:
            return at
    raise _refusal("the last message has no text to continue")


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"continue_final_message is not possible: {reason}", param="continue_final_message"
    )
