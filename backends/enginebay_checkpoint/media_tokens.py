"""Prompts with media: the tokens of their texts, and the spans of their items."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from enginebay import InvalidRequestError, Media, MediaPrompt, MediaSpan, Modality, PlainText
from enginebay_checkpoint.tokenizer import Tokenizer


class PreparedItem(Protocol):
    """An item as a prompt has it: `text` with `tokens` tokens that stand for its rows."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring pieces that are tokenized as one text, and the items in it, in order."""

    text: str
    items: tuple[tuple[Media, PreparedItem], ...] = ()
    plain: bool = False


class MediaTokenizer:
    """Makes prompts of texts and items, on any thread.

    Texts and what stands for items between them are tokenized together, as transformers'
    processors do; only plain text is apart. What an item's tokens are in a text is plain, too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prepare: Callable[[Media], PreparedItem],
        row_texts: Mapping[Modality, str],
        placeholders: Iterable[str] = (),
    ) -> None:
        """`row_texts`: the token, as text, that stands for a row of an item of each kind.

        `placeholders`: other texts that stand for items. `prepare` raises an `InvalidRequestError`
        for what cannot be read. `row_ids` are the ids of these tokens.
        """
        self._tokenizer = tokenizer
        self._prepare = prepare
        texts = {*row_texts.values(), *placeholders}
        longest = sorted(map(re.escape, texts), key=len, reverse=True)
        self._placeholder = re.compile(f"({'|'.join(longest)})")
        self.row_ids = {
            kind: tokenizer.encode(text, add_special_tokens=False)[-1]
            for kind, text in row_texts.items()
        }

    def tokenize(self, pieces: Sequence[str | Media], *, add_special_tokens: bool) -> MediaPrompt:
        """As `Engine.tokenize_media`."""
        start, end = self._tokenizer.outer_tokens if add_special_tokens else ([], [])
        ids = [*start]
        spans: list[MediaSpan] = []
        for run in self._runs(pieces):
            encode = self._tokenizer.encode_plain if run.plain else self._tokenizer.encode
            made = encode(run.text, add_special_tokens=False)
            spans += self._spans(made, len(ids), run.items)
            ids += made
        return MediaPrompt((*ids, *end), tuple(spans))

    def _runs(self, pieces: Sequence[str | Media]) -> Iterator[_Run]:
        text, items, number = "", list[tuple[Media, PreparedItem]](), 0
        for piece in self._split(pieces):
            if isinstance(piece, Media):
                prepared = self._prepared(piece, number)
                number += 1
                text += prepared.text
                items.append((piece, prepared))
            elif not isinstance(piece, PlainText):
                text += piece
            elif piece:
                if text:
                    yield _Run(text, tuple(items))
                yield _Run(piece, plain=True)
                text, items = "", []
        if text:
            yield _Run(text, tuple(items))

    def _split(self, pieces: Sequence[str | Media]) -> Iterator[str | Media]:
        """The pieces, without placeholders in texts that are read for special tokens."""
        for piece in pieces:
            if isinstance(piece, (Media, PlainText)):
                yield piece
                continue
            for index, part in enumerate(self._placeholder.split(piece)):
                yield PlainText(part) if index % 2 else part

    def _prepared(self, media: Media, number: int) -> PreparedItem:
        try:
            return self._prepare(media)
        except InvalidRequestError as error:
            raise type(error)(error.message, param=f"media.{number}") from error

    def _spans(
        self, ids: Sequence[int], offset: int, items: Sequence[tuple[Media, PreparedItem]]
    ) -> Iterator[MediaSpan]:
        """The spans of items whose tokens, and no other placeholders, are in `ids`."""
        place = 0
        for media, prepared in items:
            row_id = self.row_ids[media.kind]
            found = 0
            while found < prepared.tokens:
                start = ids.index(row_id, place)
                place = start
                while place < len(ids) and ids[place] == row_id and found < prepared.tokens:
                    place += 1
                    found += 1
                yield MediaSpan(offset + start, place - start, media, found - (place - start))
