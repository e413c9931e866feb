"""What a model's processor makes of an item: tensors for its towers, and text for the prompt."""

import logging
from collections.abc import Container, Mapping
from threading import Lock
from typing import Any

from PIL import Image
from torch import Tensor

from enginebay import (
    InvalidRequestError,
    Media,
    Modality,
    SizedCache,
    decode_picture,
    decode_sound,
    decode_video,
    picture_within,
)
from enginebay_hf.media.prepared import Outline, Prepared

logger = logging.getLogger(__name__)

_KEPT = 128 << 20  # bytes of tensors
_OUTLINES = 16 << 20  # bytes of what prompts have of items
_LONGEST = 200  # times the shorter side, as Qwen's own processor has it
_FPS, _FRAMES = 2.0, 32  # of a video, if a request says nothing else
_OPTIONS: Mapping[Modality, Mapping[str, tuple[float, float]]] = {
    "image": {"max_pixels": (1, 1 << 28), "min_pixels": (1, 1 << 24)},
    "video": {"fps": (0.01, 60), "num_frames": (1, 1024)},
    "audio": {},
}
"""Options of an item by its kind, and their ranges; those of other kinds mean nothing to it."""


class Processor:
    """A processor of transformers, used from any thread.

    `row_texts` are the tokens, as text, that stand for rows. The processor sees one item at a time,
    decoded, in a text of nothing but its placeholder: so there is nothing for it to fetch, to count
    or to mistake.

    An item's outline is kept apart from its tensors and for longer, so that a picture of an earlier
    turn is neither decoded nor prepared again. `grids` are names of tensors that belong to it.
    """

    def __init__(
        self, processor: Any, row_texts: Mapping[Modality, str], grids: Container[str] = ()
    ) -> None:
        self._processor = processor
        self._grids = grids
        self._lock = Lock()
        self._kept: SizedCache[Prepared] = SizedCache(_KEPT)
        self._outlines: SizedCache[Outline] = SizedCache(_OUTLINES)
        self.row_texts = dict(row_texts)
        self.options: frozenset[str] = frozenset()
        self.longest_sound: float | None = None  # seconds; None: as long as it likes

    @property
    def placeholders(self) -> dict[Modality, str]:
        """For each kind the text that stands for an item in prompts."""
        return {kind: getattr(self._processor, f"{kind}_token") for kind in self.row_texts}

    @property
    def sound_window(self) -> float | None:
        """Seconds of sound that are one piece for the processor; None if it does not say."""
        extractor = self._extractor
        samples = getattr(extractor, "n_samples", None)
        return samples / extractor.sampling_rate if samples else None

    @property
    def _extractor(self) -> Any:
        found = getattr(self._processor, "feature_extractor", None)
        return found if found is not None else getattr(self._processor, "audio_processor", None)

    def forget(self, kind: Modality) -> None:
        """Take items of a kind, and their options, no longer."""
        del self.row_texts[kind]
        self.options = self.options.difference(_OPTIONS[kind])

    def outline(self, media: Media) -> Outline:
        """What stands for an item. `InvalidRequestError` if it cannot be read."""
        if (outline := self._outlines.get(media.key)) is None:
            outline, prepared = self._prepared(media)
            self._kept.put(media.key, prepared)
        return outline

    def prepare(self, media: Media) -> Prepared:
        """What its tower takes of an item. `InvalidRequestError` if it cannot be read.

        It is not kept any longer: rows that the tower makes of it are.
        """
        return self.kept(media) or self._prepared(media)[1]

    def kept(self, media: Media) -> Prepared | None:
        """What `prepare` has at hand; it is not kept any longer."""
        return self._kept.pop(media.key)

    def call(self, media: Media, text: str) -> Any:
        """What the processor returns for a text with one placeholder, which stands for the item.

        A batch of one, in tensors, with the replaced text.
        """
        arguments = {"return_tensors": "pt", "return_text_replacement_offsets": True}
        item = self._item(media)
        with self._lock:  # its tokenizer changes itself in every call
            return self._processor(text=[text], **item, **arguments)

    def _prepared(self, media: Media) -> tuple[Outline, Prepared]:
        if media.kind not in self.row_texts:
            raise InvalidRequestError(f"this model takes no {media.kind}")
        _check_options(media)
        try:
            made = self.call(media, self.placeholders[media.kind])
            [[replaced]] = made.pop("text_replacement_offsets")
        except InvalidRequestError:
            raise
        except Exception as error:
            logger.debug("the processor fails", exc_info=True)
            raise InvalidRequestError(
                f"the model's processor cannot read it: {type(error).__name__}: {error}"
            ) from error
        tensors = {
            name: value
            for name, value in made.items()
            if isinstance(value, Tensor) and name not in _TEXT_NAMES
        }
        text = replaced["replacement"]
        tokens = text.count(self.row_texts[media.kind])
        if not tokens:
            raise InvalidRequestError("the model's processor makes no tokens of it")
        grids = {name: tensor for name, tensor in tensors.items() if name in self._grids}
        outline, prepared = Outline(text, tokens, grids), Prepared(tokens, tensors)
        self._outlines.put(media.key, outline)
        return outline, prepared

    def _item(self, media: Media) -> dict[str, Any]:
        match media.kind:
            case "image":
                return self._picture(media)
            case "audio":
                return self._sound(media)
            case "video":
                return self._video(media)

    def _picture(self, media: Media) -> dict[str, Any]:
        image = decode_picture(media)
        _check_sides(image)
        part = self._processor.image_processor
        if "max_pixels" in getattr(part.valid_kwargs, "__annotations__", {}):
            # Its edges are numbers of pixels.
            low, high = part.size["shortest_edge"], part.size["longest_edge"]
            low = int(media.options.get("min_pixels", low))
            high = int(media.options.get("max_pixels", max(low, high)))
            size = {"shortest_edge": min(low, high), "longest_edge": high}
            return {"images": [image], "images_kwargs": {"size": size}}
        if "max_pixels" in media.options:
            image = picture_within(image, int(media.options["max_pixels"]))
        return {"images": [_squared_within(image, media.limits.pixels)]}

    def _sound(self, media: Media) -> dict[str, Any]:
        rate = self._extractor.sampling_rate
        sound = decode_sound(media, rate)
        if self.longest_sound is not None and len(sound) > self.longest_sound * rate:
            raise InvalidRequestError(
                f"the sound is too long: this model hears the first {self.longest_sound:g} seconds"
            )
        return {"audio": [sound], "audio_kwargs": {"sampling_rate": rate}}

    def _video(self, media: Media) -> dict[str, Any]:
        most = int(media.options.get("num_frames", _FRAMES))
        video = decode_video(media, fps=float(media.options.get("fps", _FPS)), frames=most)
        _check_sides(video.frames[0])
        times, count = video.times, len(video.frames)
        fps = (count - 1) / (times[-1] - times[0]) if times[-1] > times[0] else _FPS
        metadata = {
            "total_num_frames": count,
            "fps": fps,
            "duration": count / fps,
            "frames_indices": list(range(count)),
        }
        options = {"do_sample_frames": False, "video_metadata": [metadata]}
        return {"videos": [video.frames], "videos_kwargs": options}


_TEXT_NAMES = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
)


def _check_options(media: Media) -> None:
    ranges = {name: numbers for known in _OPTIONS.values() for name, numbers in known.items()}
    for name, value in media.options.items():
        if name not in ranges:
            raise InvalidRequestError(f"there is no option {name}")
        low, high = ranges[name]
        if isinstance(value, str) or not low <= value <= high:
            raise InvalidRequestError(f"{name} must be a number from {low:g} to {high:g}")


def _check_sides(image: Image.Image) -> None:
    """Processors that enlarge the shorter side would make gigabytes of a line."""
    width, height = image.size
    if max(width, height) > _LONGEST * min(width, height):
        raise InvalidRequestError(
            f"it is too long or too high: {width} x {height} pixels; the longer side may have at "
            f"most {_LONGEST} times the pixels of the other"
        )


def _squared_within(image: Image.Image, pixels: int) -> Image.Image:
    """The picture, smaller if a square around it, which some processors make, has more pixels."""
    scale = pixels**0.5 / max(image.size)
    if scale >= 1:
        return image
    return image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))
