"""Blocks as parts of a chat message's content, each with its place in the request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.contract.errors import InvalidRequestError
from enginebay_messages.blocks import (
    Base64Source,
    Block,
    ContentBlock,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    UrlSource,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a chat message's content; `place` is where in the client's request it is from."""

    fields: dict[str, Any]
    place: str

    @property
    def text(self) -> str | None:
        """Its text, if it is one."""
        return self.fields["text"] if self.fields["type"] == "text" else None


def text_part(text: str, place: str) -> Part:
    """A text as a part."""
    return Part({"type": "text", "text": text}, place)


def parts_of(block: ContentBlock, place: str) -> Iterator[Part]:
    """The parts that a block comes to. `InvalidRequestError` for what this server cannot get."""
    match block:
        case TextBlock(text=text):
            yield text_part(text, place)
        case ImageBlock(source=source):
            yield Part({"type": "image_url", "image_url": {"url": _url(source, place)}}, place)
        case SearchResultBlock():
            texts = (block.title, *(each.text for each in block.content))
            yield _lines(texts, place)
        case DocumentBlock():
            yield from _document(block, place)


def _lines(texts: Sequence[str], place: str) -> Part:
    """Texts below each other, and apart from what is behind them."""
    return text_part("".join(f"{text}\n" for text in texts), place)


def _url(source: object, place: str) -> str:
    if isinstance(source, UrlSource):
        return source.url
    if isinstance(source, Base64Source):
        return _data_url(source)
    raise InvalidRequestError(
        "this server keeps no files: send the image itself, in base64", param=f"{place}.source"
    )


def _data_url(source: Base64Source) -> str:
    return f"data:{source.media_type};base64,{source.data}"


def _document(block: DocumentBlock, place: str) -> Iterator[Part]:
    """A document under its title and what is said about it, text by text."""
    about = [text for text in (block.title, block.context) if text]
    heading = [_lines(about, place)] if about else []
    match block.source:
        case TextSource(data=data):
            yield _lines((*about, data), place)
        case ContentSource(content=str() as text):
            yield _lines((*about, text), place)
        case ContentSource(content=list() as blocks):
            yield from heading
            for number, inner in enumerate(blocks):
                yield from parts_of(inner, f"{place}.source.content[{number}]")
        case Base64Source() as source:
            yield from heading
            file = {"file_data": _data_url(source)}
            yield Part({"type": "file", "file": file}, f"{place}.source")
        case _:
            raise InvalidRequestError(
                "this server neither fetches documents nor keeps files: send the document itself, "
                "as text",
                param=f"{place}.source",
            )


def contents_of(content: str | Sequence[Block] | None, place: str) -> Iterator[tuple[Block, str]]:
    """The blocks of a content with their places; a text is a block."""
    if isinstance(content, str):
        yield TextBlock(text=content), place
        return
    for number, block in enumerate(content or ()):
        yield block, f"{place}[{number}]"
