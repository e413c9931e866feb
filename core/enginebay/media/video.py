"""Bytes of a video to pictures at even distances, within limits that are watched while decoding."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media, MediaLimits
from enginebay.media.containers import decoder_options, opened
from enginebay.media.pictures import picture_within, require_pillow, size_within

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL import Image

_WORK = 1000  # frames of the largest size, and as many pixels in smaller ones, may be decoded


@dataclass(frozen=True, slots=True)
class Video:
    """Pictures of a video in RGB, all of one size, and when each is shown, in seconds."""

    frames: "list[Image.Image]"
    times: tuple[float, ...]


def decode_video(media: Media, *, fps: float, frames: int) -> Video:
    """Pictures of a video, `fps` a second, but over its whole length at most `frames`.

    They are turned as the file says, and scaled down if together they had more pixels than a
    picture may have. Errors are those of `decode_sound`.
    """
    require_pillow()
    limits = media.limits
    most = max(1, min(frames, limits.frames))
    with opened(media) as file:
        if not file.streams.video:
            raise InvalidRequestError("there are no pictures in this video")
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.options = decoder_options(media)
        _check_size(stream.codec_context.width, stream.codec_context.height, limits)
        length = _length(file, stream)
        _check_time(length, limits)
        gap = max(1 / fps, length / most)
        expected = min(most, math.ceil(length / gap)) if length else most
        decoded = 0
        made: list[tuple[float, Image.Image]] = []
        for frame in file.decode(stream):
            time = frame.time or 0.0
            decoded += frame.width * frame.height
            _check_time(time, limits)
            _check_size(frame.width, frame.height, limits)
            if decoded > _WORK * limits.pixels:
                raise InvalidRequestError("the video has too many frames")
            if made and time < made[-1][0] + gap - 1e-6:
                continue
            if len(made) == most:  # longer than its header says
                made, gap = made[::2], 2 * gap
                if len(made) == most or time < made[-1][0] + gap - 1e-6:
                    continue
            if len(made) == expected:  # so too
                expected = min(most, 2 * expected)
                pixels = limits.pixels // expected
                made = [(then, picture_within(image, pixels)) for then, image in made]
            size = made[0][1].size if made else None
            made.append((time, _picture(frame, limits.pixels // expected, size)))
    if not made:
        raise InvalidRequestError("there are no pictures in this video")
    return Video([image for _, image in made], tuple(time for time, _ in made))


def _length(file: "InputContainer", stream: "VideoStream") -> float:
    """Seconds, by its header; 0 if that does not say."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (file.duration or 0) / 1_000_000


def _check_time(seconds: float, limits: MediaLimits) -> None:
    if seconds > limits.seconds:
        raise InvalidRequestError(f"the video is too long: the most are {limits.seconds:g} seconds")


def _check_size(width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.pixels or max(width, height) > limits.side:
        raise InvalidRequestError(
            f"the video is too large: {width} x {height} pixels; the most are {limits.pixels} "
            f"in all and {limits.side} a side"
        )


def _picture(frame: "VideoFrame", pixels: int, size: tuple[int, int] | None) -> "Image.Image":
    from PIL import Image

    """The frame upright; of this `size` once turned, or of at most so many `pixels`."""
    width, height = size_within((frame.width, frame.height), pixels)
    image = Image.fromarray(frame.to_ndarray(format="rgb24", width=width, height=height))
    if frame.rotation:
        image = image.rotate(frame.rotation, expand=True)
    return image if size in (None, image.size) else image.resize(size)
