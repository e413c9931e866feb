"""Bytes of sound to samples, within limits that are watched while they are decoded."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media
from enginebay.media.containers import decoder_options, opened

if TYPE_CHECKING:
    from av import AudioFrame

_SHORTEST = 0.01  # seconds; there are feature extractors that end the process for less


_RATES = (1_000, 768_000)  # samples a second


def decode_sound(media: Media, rate: int) -> NDArray[np.float32]:
    """Samples of one channel, `rate` a second, as a rule from -1 to 1.

    Several channels become their mean. `InvalidRequestError`, without `param`, for what has no
    sound, less than 10 ms of it, more than its limits, or samples that are no numbers; and
    `UnsupportedModalityError` where PyAV is not installed.
    """
    with opened(media) as file:
        from av import AudioResampler

        if not file.streams.audio:
            raise InvalidRequestError("there is no sound in this file")
        stream = file.streams.audio[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.options = decoder_options(media)
        resampler = AudioResampler(format="fltp", rate=rate)
        taken = 0
        parts: list[NDArray[np.float32]] = []
        for frame in file.decode(stream):
            taken += frame.samples
            if taken / frame.sample_rate > media.limits.seconds:
                raise InvalidRequestError(
                    f"the sound is too long: the most are {media.limits.seconds:g} seconds"
                )
            if not _RATES[0] <= frame.sample_rate <= _RATES[1]:  # filters for odd ones are huge
                raise InvalidRequestError(
                    f"the sound has {frame.sample_rate} samples a second; there may be from "
                    f"{_RATES[0]} to {_RATES[1]}"
                )
            frame.pts = None  # gaps in the time stamps are no silence
            parts += _samples(resampler.resample(frame))
        parts += _samples(resampler.resample(None)) if taken else []
    samples = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if samples.size < _SHORTEST * rate:
        raise InvalidRequestError("the sound is too short: it has less than 10 ms")
    if not np.isfinite(samples).all():
        raise InvalidRequestError("the sound has samples that are no numbers (NaN or infinite)")
    return samples


def _samples(frames: "list[AudioFrame]") -> list[NDArray[np.float32]]:
    return [frame.to_ndarray().mean(axis=0, dtype=np.float32) for frame in frames]
