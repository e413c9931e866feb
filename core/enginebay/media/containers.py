"""Files of sound and video, opened with FFmpeg, which is let do as little as possible."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from enginebay.contract.errors import InvalidRequestError, UnsupportedModalityError
from enginebay.contract.media import Media
from enginebay.media.kinds import NOUNS, format_of

if TYPE_CHECKING:
    from av.container import InputContainer

_DEMUXERS = {"mp4": "mov,mp4,m4a,3gp,3g2,mj2", "matroska": "matroska,webm"}  # names of one each
_DECODERS = (
    "aac,alac,flac,mp3,mp3float,opus,libopus,vorbis,pcm_alaw,pcm_mulaw,pcm_u8,pcm_s16le,pcm_s24le,"
    "pcm_s32le,pcm_f32le,pcm_f64le,av1,libdav1d,h264,hevc,mjpeg,mpeg4,vp8,vp9,libvpx,libvpx-vp9"
)


@contextmanager
def opened(media: Media) -> "Iterator[InputContainer]":
    """The file of a sound or a video; whatever goes wrong with it is an `InvalidRequestError`.

    FFmpeg is told the format that the first bytes show and tries none of its own: playlists (HLS,
    concat, DASH), which name other files and addresses, are never read as such.
    """
    noun, demuxer = NOUNS[media.kind], format_of(media.data, media.kind).readers[media.kind]
    try:
        import av
    except ImportError as error:
        raise UnsupportedModalityError(
            f'to read a {noun} this server needs PyAV: pip install "enginebay[media]"'
        ) from error
    options = {
        "format_whitelist": _DEMUXERS.get(demuxer, demuxer),
        "protocol_whitelist": "",
        "codec_whitelist": _DECODERS,
        "max_streams": "8",
    }
    try:
        with av.open(io.BytesIO(media.data), mode="r", format=demuxer, options=options) as file:
            yield file
    except InvalidRequestError:
        raise
    except Exception as error:  # of what its bytes do to one of many decoders
        raise InvalidRequestError(
            f"the {noun} cannot be decoded: it is damaged, cut, or made by an unknown codec"
        ) from error


def decoder_options(media: Media) -> dict[str, str]:
    """Options for the decoder of a stream, whose pixels include those at the padded edges."""
    return {"codec_whitelist": _DECODERS, "max_pixels": str(2 * media.limits.pixels)}
