"""Pictures, sounds and videos in the messages of a chat, in the spellings of several APIs.

OpenAI's `image_url` and `input_audio`, the Responses API's `input_image`, Anthropic's `image` with
a `source`, vLLM's and LLaMA-Factory's `audio_url` and `video_url`, and a list `images` beside the
content.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.chat.schemas.messages import ContentPart, Message
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Modality

KINDS: Mapping[str, Modality] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
"""The kind of media of each type of part."""

_BESIDE = ("source", "url", "data", "detail", "format", "uuid")
_LONG = 200  # characters; longer ones are data as a rule
_DETAILS = ("low", "high", "auto", "original")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An item of media in a message.

    `param`: its path in the request. `url` is what was sent: a URL or base64. `detail` is OpenAI's,
    with its own path.
    """

    kind: Modality
    param: str
    url: str
    detail: str | None = None
    detail_param: str = ""


def media_parts(messages: Sequence[Message]) -> Iterator[MediaPart]:
    """All of the messages' items, in their order. `InvalidRequestError` for one without bytes."""
    for position, message in enumerate(messages):
        param = f"messages[{position}]"
        for number, url in enumerate(picture_list(message)):
            where = f"{param}.images[{number}]"
            if not isinstance(url, str) or not url:
                raise InvalidRequestError("an image is base64 or a URL, as a text", param=where)
            yield MediaPart("image", where, url)
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in KINDS:
                yield _read(part, f"{param}.content[{number}]")


def picture_list(message: Message) -> list[Any]:
    """`images` of a message, which come before its text."""
    images = (message.model_extra or {}).get("images")
    return images if isinstance(images, list) else []


def item_keys(part: ContentPart) -> frozenset[str]:
    """The keys of a part that say what its item is."""
    kind = KINDS.get(part.type)
    return frozenset((part.type, kind, f"{kind}_url", *_BESIDE)) if kind else frozenset()


def _read(part: ContentPart, param: str) -> MediaPart:
    kind = KINDS[part.type]
    extra: dict[str, Any] = part.model_extra or {}
    if extra.get("file_id") is not None:
        raise InvalidRequestError(
            f"this server keeps no files: send the {kind} itself, as a data URL", param=param
        )
    named = next((k for k in (part.type, f"{kind}_url", kind, "source") if k in extra), None)
    value: Any = extra if named is None else extra[named]
    url, within = value, f"`{named or part.type}`"
    if isinstance(value, dict) and (named or value):
        found = next((key for key in ("url", "data") if key in value), "url")
        url, within = value.get(found), f"`{named}.{found}`" if named else f"`{found}`"
    if not isinstance(url, str) or not url:
        raise InvalidRequestError(
            f"a content part of type {part.type!r} needs {within}, a URL or base64 as a text",
            param=param,
        )
    inner = isinstance(value, dict) and named is not None and "detail" in value
    detail = value["detail"] if inner else extra.get("detail")
    where = f"{param}.{named}.detail" if inner else f"{param}.detail"
    if detail not in (None, *_DETAILS):
        raise InvalidRequestError(f"detail is one of {', '.join(_DETAILS)}", param=where)
    return MediaPart(kind, param, url, detail, where)


def without_media(value: Any, messages: Sequence[Message]) -> Any:
    """The same JSON value, with hashes in place of media that these messages hold."""
    texts = (part.url for part in media_parts(messages) if len(part.url) > _LONG)
    hashes = {text: f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for text in texts}
    return _replaced(value, hashes) if hashes else value


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        # What was sent as base64 alone may have become a data URL since.
        data = value.partition(",")[2] if value.startswith("data:") else ""
        return texts.get(value) or texts.get(data, value)
    if isinstance(value, dict):
        return {key: _replaced(each, texts) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each, texts) for each in value]
    return value
