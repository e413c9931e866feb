"""A model's media, made from its folder: what of its processor and its towers can be used."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from enginebay import InvalidRequestError, Modality
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.media.model import MediaModel
from enginebay_hf.media.processor import Processor
from enginebay_hf.media.sample import sample
from enginebay_hf.options import HFOptions
from enginebay_hf.weights import trust

logger = logging.getLogger(__name__)

_PARTS: Mapping[Modality, tuple[str, ...]] = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
# Options of pictures, each with a picture (pixels a side) whose tokens a value should change.
_TRIALS = (("max_pixels", 512, 64**2), ("min_pixels", 64, 512**2))


def load_media(
    checkpoint: Checkpoint, options: HFOptions, model: PreTrainedModel, tokenizer: Tokenizer
) -> MediaModel | None:
    """What a model does with media; None if it takes none, or if its processor cannot be made.

    In that case a warning says why.
    """
    row_ids = dict(_row_ids(model.config))
    if not row_ids:
        return None
    processor = _processor(checkpoint, options, model)
    if processor is None:
        return None
    usable = {kind: row_id for kind, row_id in row_ids.items() if _has(processor, kind)}
    if not usable:
        logger.warning(
            "%s: text only, because %s prepares no media by itself",
            checkpoint.path,
            type(processor).__name__,
        )
        return None
    cache_bytes = options.media_cache_mb << 20
    media = MediaModel(model, processor, tokenizer, usable, cache_bytes=cache_bytes)
    media.drop(dict(_unreadable(media, tokenizer)), checkpoint)
    if not media.kinds:
        return None
    media.processor.options = frozenset(_options(media.processor, media.kinds))
    media.processor.longest_sound = _longest_sound(media.processor, media.kinds)
    return media


def _row_ids(config: Any) -> Iterator[tuple[Modality, int]]:
    for kind in _PARTS:
        tower = "audio_config" if kind == "audio" else "vision_config"
        if hasattr(config, tower) and getattr(config, tower) is None:
            continue
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if isinstance(row_id := getattr(config, name, None), int):
                yield kind, row_id
                break


def _has(processor: Any, kind: Modality) -> bool:
    parts = [getattr(processor, name, None) for name in _PARTS[kind]]
    return any(part is not None for part in parts) and bool(
        getattr(processor, f"{kind}_token", None)
    )


def _processor(checkpoint: Checkpoint, options: HFOptions, model: PreTrainedModel) -> Any:
    def load(auto: Any) -> Any:
        return auto.from_pretrained(checkpoint.path, **trust(options))

    try:
        try:
            if isinstance(made := load(AutoProcessor), ProcessorMixin):
                return made
            raise ValueError("the folder has none")
        except (ImportError, ValueError) as error:
            if "torchvision" not in str(error).lower():
                raise
            made = _without_video(PROCESSOR_MAPPING[type(model.config)], checkpoint, load)
            logger.warning(
                "%s: no video, because its processor needs torchvision: "
                "pip install torchvision, from where torch was installed",
                checkpoint.path,
            )
            return made
    except Exception as error:
        logger.warning(
            "%s: text only, because its processor cannot be made: %s: %s",
            checkpoint.path,
            type(error).__name__,
            error,
        )
        return None


def _without_video(processor: Any, checkpoint: Checkpoint, load: Callable[[Any], Any]) -> Any:
    """A processor of this class, but for its part for videos, which only torchvision makes."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else processor.check_argument_for_proper_class(self, name, part)

    partial = type(processor.__name__, (processor,), {"check_argument_for_proper_class": check})
    autos = {
        "image_processor": AutoImageProcessor,
        "feature_extractor": AutoFeatureExtractor,
        "tokenizer": AutoTokenizer,
    }
    parts = {
        name: load(autos[name]) if name in autos else None for name in processor.get_attributes()
    }
    settings, _ = processor.get_processor_dict(checkpoint.path)
    known = {name: value for name, value in settings.items() if name not in parts}
    for name in ("processor_class", "auto_map"):
        known.pop(name, None)
    return partial(**parts, **known)


def _unreadable(media: MediaModel, tokenizer: Tokenizer) -> Iterator[tuple[Modality, str]]:
    """The kinds of which not even an item of noise can be prepared, and why."""
    for kind, text in media.processor.row_texts.items():
        if tokenizer.encode(text, add_special_tokens=False) != [media.row_ids[kind]]:
            yield kind, f"{text!r}, which stands for it, is no token of its tokenizer"
            continue
        try:
            media.processor.prepare(sample(kind, 0))
        except InvalidRequestError as error:
            yield kind, error.message


def _options(processor: Processor, kinds: Iterable[Modality]) -> Iterator[str]:
    """The options that change something."""
    if "image" in kinds:
        for name, size, value in _TRIALS:
            item = sample("image", 0, size=size)
            changed = replace(item, options={name: value})
            if processor.prepare(changed).tokens != processor.prepare(item).tokens:
                yield name
    if "video" in kinds:
        yield from ("fps", "num_frames")


def _longest_sound(processor: Processor, kinds: Iterable[Modality]) -> float | None:
    """Seconds that the model hears of a sound; None if there is no such limit."""
    if "audio" not in kinds or not (seconds := processor.sound_window):
        return None
    window, longer = (sample("audio", 0, seconds=length) for length in (seconds, seconds + 2))
    grows = processor.prepare(longer).tokens > processor.prepare(window).tokens
    return None if grows else seconds
