"""Content of messages: its texts, its media and its thought; anything else is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.chat.plan.media_marks import Written
from enginebay.chat.plan.media_parts import KINDS, item_keys
from enginebay.chat.schemas.messages import ContentPart, Message
from enginebay.contract.errors import InvalidRequestError
from enginebay.media.data_url import data_of
from enginebay.media.policy import ByteLimit

_TEXTS = ("text", "input_text", "output_text")
_FILES = ("file", "input_file")
_BESIDE = (
    "image",
    "images",
    "image_url",
    "image_urls",
    "audio",
    "audios",
    "video",
    "videos",
    *("files", "input_audio", "input_image", "input_video"),
)

_OF_FILES = frozenset(("file", "file_data", "filename", "file_id", "file_url"))

Content = str | Written


def content_and_thought(
    message: Message, param: str, media: Mapping[str, Written]
) -> tuple[list[Content], str]:
    """The content of a message in its order, and an assistant's thought in it, joined.

    `param`: the message's path. `media`: how the items of the request are written, by path.
    `InvalidRequestError` for parts, and for media beside the content, that are not taken.
    """
    content: list[Content] = []
    for key in _BESIDE:
        sent = (message.model_extra or {}).get(key)
        if key == "images" and isinstance(sent, list) and f"{param}.images[0]" in media:
            content += [media[f"{param}.images[{at}]"] for at in range(len(sent))]
        elif sent not in (None, "", [], {}):
            raise InvalidRequestError(
                f"`{key}` of the message is not read: media are sent as parts of its content",
                param=f"{param}.{key}",
            )
    if message.content is None or isinstance(message.content, str):
        return [*content, *([message.content] if message.content else [])], ""
    thoughts = []
    for position, part in enumerate(message.content):
        where = f"{param}.content[{position}]"
        if part.is_thought and message.role == "assistant":
            thoughts.append(_thought(part))
        elif where in media:
            content.append(media[where])
        else:
            content.append(_text(part, where))
    return content, "".join(thoughts)


def read_keys(part: ContentPart) -> frozenset[str]:
    """The keys of a part, beside those of text, that are read."""
    return _OF_FILES if part.type in _FILES else item_keys(part)


def _text(part: ContentPart, param: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.is_thought:
        raise InvalidRequestError(
            f"a content part of type {part.type!r} belongs in messages of the assistant",
            param=f"{param}.type",
        )
    if part.type in _FILES:
        return _file_text(part, param)
    if part.type not in _TEXTS:
        raise InvalidRequestError(
            f"there is no content part of type {part.type!r}; there are text, "
            f"{', '.join((*KINDS, *_FILES))}",
            param=f"{param}.type",
        )
    if part.text is None:
        raise InvalidRequestError("the text part has no `text`", param=f"{param}.text")
    return part.text


def _file_text(part: ContentPart, param: str) -> str:
    """The text of a file, under its name if it has one."""
    extra: dict[str, Any] = part.model_extra or {}
    file = extra["file"] if isinstance(extra.get("file"), dict) else extra
    data = file.get("file_data")
    if not isinstance(data, str) or not data:
        raise InvalidRequestError(
            "this server keeps no files: send the file itself as `file_data`, a data URL",
            param=param,
        )
    try:
        text = data_of(data, ByteLimit(len(data), "the file has")).decode()
    except UnicodeDecodeError:
        text = "\0"
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"the file cannot be used: {error.message}", param=param
        ) from error
    if "\0" in text:
        raise InvalidRequestError(
            "the file is not text; of other files only pictures, sounds and videos can be sent, as "
            "parts of their own types",
            param=param,
        )
    name = file.get("filename")
    return f"{name}:\n{text}\n" if isinstance(name, str) and name else text


def _thought(part: ContentPart) -> str:
    """Of Anthropic and Mistral in `thinking`, of OpenAI in `content` or `summary`, else `text`."""
    found = (part.thinking, part.reasoning, part.text, part.content, part.summary)
    return _joined(next((value for value in found if value), ""))


def _joined(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(
            _joined(part.get("text") if isinstance(part, dict) else part) for part in value
        )
    return value if isinstance(value, str) else ""
