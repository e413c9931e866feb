"""Pictures of requests: decoded and sized, encoded by the tower, and kept."""

import logging
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from PIL import Image

from enginebay import (
    InvalidRequestError,
    Media,
    Preparations,
    ServingError,
    SizedCache,
    decode_picture,
)
from enginebay_exllamav2.vision.families import Size
from enginebay_exllamav2.vision.tower import Tower

logger = logging.getLogger(__name__)

_DECODED = 128 << 20  # bytes of pixels
_MANY = 2**31


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the size that the tower gets, and what stands for it in a prompt."""

    image: Image.Image
    grid: Size
    text: str
    tokens: int

    @property
    def nbytes(self) -> int:
        """Memory of its pixels."""
        return self.image.width * self.image.height * 3


class _Rows:
    """An `ExLlamaV2MMEmbedding`, which has the ids of its tokens."""

    def __init__(self, embedding: Any) -> None:
        self.embedding = embedding

    @property
    def nbytes(self) -> int:
        size: int = self.embedding.get_size_in_bytes()
        return size


class Pictures:
    """What a model sees with.

    The library gives each embedding token ids of its own, from a billion up, and the prefix cache
    knows a picture by them. So a picture has one embedding as long as a request holds it or there
    is room for `kept` bytes of them, and its key leads to it.
    """

    def __init__(self, tower: Tower, model: Any, tokenizer: Any, kept: int) -> None:
        """`model` and `tokenizer` are the library's."""
        self.family = tower.family
        self._tower = tower
        self._model = model
        self._tokenizer = tokenizer
        self._decoded: SizedCache[Picture] = SizedCache(_DECODED)
        self._rows: SizedCache[_Rows] = SizedCache(kept)
        self._in_use: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._preparations = Preparations(self.prepare, lambda media: self._decoded.get(media.key))

    def prepare(self, media: Media) -> Picture:
        """A picture of a request; from any thread.

        `InvalidRequestError`, without `param`, for what cannot be shown to this model.
        """
        picture = self._decoded.get(media.key)
        if picture is None:
            picture = self._prepared(media)
            self._decoded.put(media.key, picture)
        return picture

    def encoded(self, media: Media) -> bool:
        """Whether `embedding` has it at hand."""
        return media.key in self._in_use or media.key in self._rows

    def ready(self, media: Media) -> bool:
        """Whether it is decoded; if not, that is done on another thread from now on."""
        return self._preparations.ready(media)

    def wait(self) -> None:
        """Wait a moment for pictures that are being decoded."""
        self._preparations.wait()

    def embedding(self, media: Media) -> Any:
        """The `ExLlamaV2MMEmbedding` of a picture; on the engine thread.

        `ServingError` if the tower fails on it.
        """
        if (embedding := self._in_use.get(media.key)) is None:
            if (rows := self._rows.get(media.key)) is None:
                rows = _Rows(self._encoded(media))
            embedding = self._in_use[media.key] = rows.embedding
        self._rows.put(media.key, _Rows(embedding))
        return embedding

    def close(self) -> None:
        """Free the tower; called once, last, on the engine thread."""
        self._tower.close()
        self._rows.clear()
        self._decoded.clear()

    def _prepared(self, media: Media) -> Picture:
        if media.kind != "image":
            raise InvalidRequestError(f"this model takes no {media.kind}")
        image = decode_picture(media)
        pixels = media.options.get("max_pixels", _MANY)
        if not isinstance(pixels, int) or pixels < 1:
            raise InvalidRequestError(f"max_pixels is {pixels!r}; give a whole number from 1")
        config, family = self._tower.config, self.family
        size = family.fitted(config, image.size, pixels)
        if image.size != size:
            image = image.resize(size, Image.Resampling(config.vision_resample))
        if max(size) > config.vision_max_size:
            raise InvalidRequestError(
                f"the picture is too long for this model: {size[0]} x {size[1]} pixels, and the "
                f"most are {config.vision_max_size} a side"
            )
        columns, lines = family.grid(config, size)
        return Picture(image, (columns, lines), family.text(columns, lines), columns * lines)

    def _encoded(self, media: Media) -> Any:
        picture = self._preparations.get(media)
        self._preparations.forget(media)
        try:
            embedding = self._tower.encode(picture.image, self._model, self._tokenizer)
        except Exception as error:
            logger.exception("encoding a picture failed")
            raise ServingError(
                f"the model's vision tower failed on a picture: {type(error).__name__}: {error}"
            ) from error
        if embedding.length != self.family.length(*picture.grid):
            raise ServingError(
                f"the vision tower made {embedding.length} tokens of a picture, where "
                f"{self.family.length(*picture.grid)} stand in the prompt"
            )
        return embedding
