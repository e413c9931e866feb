"""Pictures and sounds of prompts: to placeholders on any thread, to rows on the engine's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from enginebay import (
    InvalidRequestError,
    Media,
    MediaPrompt,
    MediaSpan,
    PlainText,
    Preparations,
    SizedCache,
    UnsupportedModalityError,
    decode_picture,
    decode_sound,
    picture_within,
)
from enginebay_llamacpp.projector import (
    Pixels,
    Projector,
    Rows,
    Samples,
    Tile,
    tiles,
    without_content,
)
from enginebay_llamacpp.tokenizer import Tokenizer

_PREPARED_BYTES = 128 << 20
_TILE_BYTES = 4 << 10
_TOKEN_BYTES = 3 * 4 * 32 * 32
"""What an item is made into before it is encoded: about 32 x 32 pixels a token, less of sound."""

OPTIONS = frozenset({"max_pixels"})
"""Names of `Media.options`; for pictures."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Tokens and tiles of an item; `content`: the tiles can still be encoded."""

    pieces: tuple[list[int] | Tile, ...]
    content: bool

    def numbered(self) -> Iterator[tuple[int, Tile]]:
        """Each tile, and how many placeholders of the item come before it."""
        found = tiles(self.pieces)
        before = accumulate((tile.tokens for tile in found), initial=0)
        return zip(before, found, strict=False)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        size = _TOKEN_BYTES if self.content else 0
        return sum(_TILE_BYTES + size * tile.tokens for tile in tiles(self.pieces))


@dataclass(frozen=True, slots=True)
class EncodedTile:
    """A tile with its rows; its content is gone."""

    tile: Tile
    rows: Rows

    @property
    def nbytes(self) -> int:
        """Memory of its rows."""
        return self.rows.nbytes


class MediaStore:
    """The items of recent prompts, prepared and encoded, by key."""

    def __init__(
        self, projector: Projector, tokenizer: Tokenizer, *, longest: int | None, cache_bytes: int
    ) -> None:
        """`longest`: tokens of a tile whose tokens see each other, which is run in one go.

        `cache_bytes`: of rows that are kept.
        """
        self.projector = projector
        self.causal = longest is None
        self._tokenizer = tokenizer
        self._longest = longest
        self._placeholder = tokenizer.placeholder
        self._prepared: SizedCache[_Prepared] = SizedCache(_PREPARED_BYTES)
        self._encoded: SizedCache[EncodedTile] = SizedCache(cache_bytes)
        self._preparations = Preparations(self._prepare, self._with_content)

    def tokenize(self, pieces: Sequence[str | Media], *, add_special_tokens: bool) -> MediaPrompt:
        """As `Engine.tokenize_media`."""
        start, end = self._tokenizer.outer_tokens if add_special_tokens else ([], [])
        token_ids = [*start]
        spans: list[MediaSpan] = []
        for number, piece in enumerate(pieces):
            if isinstance(piece, Media):
                items = sum(isinstance(before, Media) for before in pieces[:number])
                self._add(piece, f"media.{items}", token_ids, spans)
            elif isinstance(piece, PlainText):
                token_ids += self._tokenizer.encode_part(piece)
            else:
                token_ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return MediaPrompt((*token_ids, *end), tuple(spans))

    def _add(self, media: Media, param: str, token_ids: list[int], spans: list[MediaSpan]) -> None:
        first = 0
        try:
            prepared = self._prepared.get(media.key) or self._prepare(media)
        except InvalidRequestError as error:
            raise type(error)(error.message, param=param) from error
        for piece in prepared.pieces:
            if isinstance(piece, Tile):
                spans.append(MediaSpan(len(token_ids), piece.tokens, media, first))
                token_ids += [self._placeholder] * piece.tokens
                first += piece.tokens
            else:
                token_ids += piece

    def _prepare(self, media: Media) -> _Prepared:
        item = self._decode(media)
        try:
            pieces = self.projector.split(item)
        except ValueError as error:
            raise InvalidRequestError(f"the model cannot read it: {error}") from error
        prepared = _Prepared(tuple(pieces), content=True)
        self._check_length(prepared)
        self._prepared.put(media.key, prepared)
        return prepared

    def _decode(self, media: Media) -> Pixels | Samples:
        if media.kind == "image" and self.projector.sees:
            return _pixels(media)
        if media.kind == "audio" and self.projector.hears:
            return decode_sound(media, self.projector.rate)
        raise UnsupportedModalityError(f"this model does not take media of kind {media.kind}")

    def _check_length(self, prepared: _Prepared) -> None:
        most = max((t.tokens for t in tiles(prepared.pieces) if not t.causal), default=0)
        if self._longest is not None and most > self._longest:
            raise InvalidRequestError(
                f"it has {most} tokens, which this model reads at once, and there is room for "
                f"{self._longest}; send a smaller one"
            )

    def encoded(self, media: Media) -> bool:
        """Whether the rows of all its tiles are at hand."""
        prepared = self._prepared.get(media.key)
        return prepared is not None and all(
            (media.key, first) in self._encoded for first, _ in prepared.numbered()
        )

    def ready(self, media: Media) -> bool:
        """Whether its tiles can be encoded; if not, they are made on another thread from now on."""
        return self._preparations.ready(media)

    def wait(self) -> None:
        """Wait a moment for items that are being prepared."""
        self._preparations.wait()

    def encode(self, span: MediaSpan) -> EncodedTile:
        """The rows of a span, on the engine thread; an item not at hand is prepared again."""
        media = span.media
        if found := self._encoded.get((media.key, span.first)):
            return found
        prepared = self._preparations.get(media)
        tile = dict(prepared.numbered()).get(span.first)
        if tile is None or tile.tokens != span.tokens:
            raise ValueError("a span of media is not as `tokenize_media` made it")
        encoded = EncodedTile(without_content(tile), self.projector.encode(tile))
        self._encoded.put((media.key, span.first), encoded)
        if self.encoded(media):
            self._preparations.forget(media)
            self._forget_content(media, prepared)
        return encoded

    def _with_content(self, media: Media) -> _Prepared | None:
        prepared = self._prepared.get(media.key)
        return prepared if prepared is not None and prepared.content else None

    def _forget_content(self, media: Media, prepared: _Prepared) -> None:
        """What is left says how the item is tokenized in the next prompt."""
        pieces = (without_content(p) if isinstance(p, Tile) else p for p in prepared.pieces)
        bare = _Prepared(tuple(pieces), content=False)
        self._prepared.put(media.key, bare)


def _pixels(media: Media) -> Pixels:
    """The picture, made smaller if its `max_pixels` says so."""
    picture = decode_picture(media)
    most = media.options.get("max_pixels")
    if most is not None:
        if not isinstance(most, int) or most < 1:
            raise InvalidRequestError("max_pixels must be a whole number above 0")
        picture = picture_within(picture, most)
    return np.asarray(picture, np.uint8)
