"""The media of a request, read: which the model takes, how it is to read them, their bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.chat.plan.media_marks import MediaItem
from enginebay.chat.plan.media_parts import MediaPart, media_parts
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.contract.media import MediaOption, Modality
from enginebay.contract.types import ModelInfo
from enginebay.media.load import MediaLoader, MediaSource
from enginebay.models.served import ServedModel

_LOW_PIXELS = 512 * 512  # what OpenAI makes of a picture with `detail: low`
_OF_VIDEO = frozenset({"fps", "num_frames"})
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestMedia:
    """The items of a request; `ignored`: paths of fields of theirs that have no effect."""

    items: tuple[MediaItem, ...] = ()
    ignored: tuple[str, ...] = ()


async def request_media(
    body: ChatCompletionRequest, model: ServedModel, loader: MediaLoader, salt: str | None
) -> RequestMedia:
    """Read, and where allowed fetch, the media of a chat.

    `salt`: see `Media`.

    `InvalidRequestError` with the path of the part that is wrong, before anything is fetched if
    that can be known by then.
    """
    info = model.info
    options = _options(body, info)
    parts = list(media_parts(body.messages))
    _check_modalities(parts, info)
    ignored = [part.detail_param for part in parts if _ignores_detail(part, info)]
    if not parts:
        return RequestMedia()
    media = await loader.load(
        [_source(part, _with_detail(options[part.kind], part, info)) for part in parts], salt
    )
    items = (MediaItem(each, part.param) for each, part in zip(media, parts, strict=True))
    return RequestMedia(tuple(items), tuple(ignored))


def check_passed_on(body: ChatCompletionRequest, model: ServedModel, loader: MediaLoader) -> None:
    """Raise for media that a model that takes messages does not take, or may not fetch."""
    parts = list(media_parts(body.messages))
    _check_modalities(parts, model.info)
    loader.check_passed_on([_source(part, {}) for part in parts])


def _source(part: MediaPart, options: Mapping[str, MediaOption]) -> MediaSource:
    return MediaSource(kind=part.kind, url=part.url, param=part.param, options=options)


def _check_modalities(parts: list[MediaPart], info: ModelInfo) -> None:
    """Raise for the first part of a kind that the model does not take."""
    for part in parts:
        if part.kind not in info.modalities:
            others = sorted({"text", *info.modalities})
            raise UnsupportedModalityError(
                f"this model takes {' and '.join(others)} only; the {part.kind} cannot be used",
                param=part.param,
            )


def _ignores_detail(part: MediaPart, info: ModelInfo) -> bool:
    return part.detail == "low" and not _takes_detail(part, info)


def _takes_detail(part: MediaPart, info: ModelInfo) -> bool:
    return "max_pixels" in info.media_options and part.kind in _kinds_of("max_pixels")


def _with_detail(
    options: Mapping[str, MediaOption], part: MediaPart, info: ModelInfo
) -> Mapping[str, MediaOption]:
    """These options, but with `detail: low` no more pixels than that means."""
    if part.detail != "low" or not _takes_detail(part, info):
        return options
    return {**options, "max_pixels": min(options.get("max_pixels", _LOW_PIXELS), _LOW_PIXELS)}


def _kinds_of(option: str) -> tuple[Modality, ...]:
    """What an option is about."""
    return ("video",) if option in _OF_VIDEO else ("image", "video")


def _options(
    body: ChatCompletionRequest, info: ModelInfo
) -> Mapping[Modality, dict[str, MediaOption]]:
    """`mm_processor_kwargs` for items of each kind, and `media_io_kwargs` for those of one."""
    found: dict[Modality, dict[str, MediaOption]] = {"image": {}, "audio": {}, "video": {}}
    for name, value in (body.mm_processor_kwargs or {}).items():
        param = f"mm_processor_kwargs.{name}"
        _check_option(name, value, info, param)
        for kind in _kinds_of(name):
            found[kind][name] = value
    by_kind = {str(kind): options for kind, options in found.items()}
    for key, sent in (body.media_io_kwargs or {}).items():
        param = f"media_io_kwargs.{key}"
        if key not in by_kind:
            raise InvalidRequestError(
                f"there are no such media; there are {', '.join(by_kind)}", param=param
            )
        for name, value in sent.items():
            _check_option(name, value, info, f"{param}.{name}")
            if key not in _kinds_of(name):
                raise InvalidRequestError(
                    f"it is an option of {' and '.join(_kinds_of(name))}", param=f"{param}.{name}"
                )
            by_kind[key][name] = value
    return found


def _check_option(name: str, value: Any, info: ModelInfo, param: str) -> None:
    if name not in info.media_options:
        known = ", ".join(sorted(info.media_options)) or "none"
        raise InvalidRequestError(f"this model has no such option; it has: {known}", param=param)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= _MOST or (isinstance(value, float) and name != "fps"):
        kind = "number above 0" if name == "fps" else "whole number from 1"
        raise InvalidRequestError(f"it must be a {kind}, at most {_MOST}", param=param)
