"""Words that stand for media while a prompt is rendered.

A chat template writes the model's placeholder (`<image>`) for a part of the type `image`, if it
knows such parts; else a word that nobody can guess is put into the text. What a client wrote that
looks like a placeholder is replaced by such a word, too, so that it neither moves nor adds an item.
"""

import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media, Modality, PlainText
from enginebay.models.template.features import TemplateFeatures

Piece = str | Media
"""Of a prompt: text, a `PlainText`, or an item."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An item that was read, and its path in the request."""

    media: Media
    param: str


class Mark(str):
    """A word in a text that stands for an item."""

    __slots__ = ()


Written = Mark | dict[str, Any]
"""How an item is written into a message: a word, or a part that the template knows."""


class MediaMarks:
    """The marks of one prompt."""

    def __init__(self, placeholders: Mapping[Modality, str], items: Sequence[MediaItem]) -> None:
        self.items = items
        self._placeholders = placeholders
        word = f"media{secrets.token_hex(12)}"
        self._marks = {Mark(f"{word}n{number}e"): item for number, item in enumerate(items)}
        texts = sorted(set(placeholders.values()), key=len, reverse=True)
        self._hidden = {text: f"{word}t{number}e" for number, text in enumerate(texts)}
        self._parts: list[tuple[dict[str, Any], MediaItem]] = []

    def written(
        self, features: TemplateFeatures, *, by_template: bool
    ) -> dict[str, Written] | None:
        """How each item is written, by its path; None if the template knows no such parts.

        What follows of `hide` and `split` is about items that are written so.
        """
        self._parts = []
        if not by_template:
            return {item.param: mark for mark, item in self._marks.items()}
        for kind in {item.media.kind for item in self.items}:
            placeholder = self._placeholders.get(kind)
            if not placeholder or features.media_text(kind).count(placeholder) != 1:
                return None
        self._parts = [({"type": item.media.kind}, item) for item in self.items]
        return {item.param: part for part, item in self._parts}

    def hide(self, value: Any) -> Any:
        """The same JSON value, without what looks like a placeholder."""
        if not self._hidden:
            return value
        if isinstance(value, str):
            for text, word in self._hidden.items():
                value = value.replace(text, word) if text in value else value
            return value
        if isinstance(value, Mapping):
            if self._item(value):
                return value
            return {self.hide(key): self.hide(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each) for each in value]
        return value

    def split(self, text: str, messages: Sequence[Mapping[str, Any]]) -> list[Piece] | None:
        """The pieces of a rendered prompt; None unless each item is there exactly once.

        `messages`: those the template rendered, whose order its placeholders have.
        """
        waiting: dict[str, deque[MediaItem]] = {}
        for item in self._in_order(messages):
            waiting.setdefault(self._placeholders[item.media.kind], deque()).append(item)
        words: dict[str, Piece] = {word: PlainText(t) for t, word in self._hidden.items()}
        words |= {str(mark): item.media for mark, item in self._marks.items()}
        if not words:
            return [text]
        pieces: list[Piece] = []
        for piece in re.split(f"({'|'.join(map(re.escape, [*words, *waiting]))})", text):
            if piece in waiting:
                if not waiting[piece]:
                    return None
                pieces.append(waiting[piece].popleft().media)
            else:
                pieces.append(words.get(piece, piece))
        found = sorted(id(piece) for piece in pieces if isinstance(piece, Media))
        if found != sorted(id(item.media) for item in self.items):
            return None
        return [piece for piece in pieces if piece != ""]

    def params(self, pieces: Sequence[Piece]) -> tuple[str, ...]:
        """The path of each item in the request, in the order of the prompt."""
        named = {id(item.media): item.param for item in self.items}
        return tuple(named[id(piece)] for piece in pieces if isinstance(piece, Media))

    def missing(self, text: str) -> InvalidRequestError:
        """Why a prompt whose items are words has not each of them once."""
        counts = [(text.count(mark), item) for mark, item in self._marks.items()]
        times, item = max(counts, key=lambda pair: pair[0] != 1)
        how = f"{times} times" if times else "not at all: it takes none in a message of this role"
        return InvalidRequestError(
            f"the chat template writes this {item.media.kind} {how}", param=item.param
        )

    def shown(self, pieces: Sequence[Piece]) -> str:
        """The prompt as people read it."""
        return "".join(map(self._shown, pieces))

    def _shown(self, piece: Piece) -> str:
        if isinstance(piece, Media):
            return self._placeholders.get(piece.kind) or f"<{piece.kind}>"
        return piece

    def _in_order(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[MediaItem]:
        for message in messages:
            content = message.get("content")
            for part in content if isinstance(content, list) else ():
                if item := self._item(part):
                    yield item

    def _item(self, part: object) -> MediaItem | None:
        """The item for which the template has this very part."""
        return next((item for own, item in self._parts if own is part), None)
