"""A prompt as numbers that later turns of its chat begin with, too."""

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from enginebay import Chat, GenerationRequest

_LONG = 1000
"""Characters of a text in a part of a message that are looked at by their checksum alone."""


def prompt_numbers(request: GenerationRequest) -> Sequence[int]:
    """Its tokens; of a chat, four bytes of its messages each, which is about a token."""
    if request.chat is None:
        return request.prompt_token_ids
    data = b"".join(_pieces(request.chat))
    return array("I", data[: len(data) // 4 * 4])


def _pieces(chat: Chat) -> list[bytes]:
    """The tools, which templates write first, and each message as JSON."""
    messages = [{**each, "content": _content(each.get("content"))} for each in chat.messages]
    return [_dumped(each) for each in (chat.tools, *messages)]


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [part if part.get("type") == "text" else _brief(part) for part in content]


def _brief(value: Any) -> Any:
    """A picture or a sound, of which hashing every byte as text would take long."""
    if isinstance(value, Mapping):
        return {name: _brief(each) for name, each in value.items()}
    if isinstance(value, str) and len(value) > _LONG:
        return crc32(value.encode(errors="surrogatepass"))
    return value


def _dumped(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")
