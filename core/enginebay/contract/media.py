"""Pictures, sounds and videos in a prompt, and where in it they stand."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Modality = Literal["image", "audio", "video"]

MediaOption = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """What an item may decode to; beyond that it is an `InvalidRequestError`.

    `pixels`: of a picture, or of a frame of a video; `side`: in one direction. `seconds`: of sound
    or video. `frames`: of a video, taken at even distances.
    """

    pixels: int = 40_000_000
    side: int = 16_384
    seconds: float = 600.0
    frames: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One item of a prompt as it was sent: encoded bytes, not decoded.

    `type`: the media type that its first bytes show, such as `image/png`. `options`: how the model
    is to read it, names from `ModelInfo.media_options` only. `salt`: only items with the same salt
    share what is cached of them. `key` is the same exactly for items that mean the same to a model
    and have the same salt: the SHA-256 of kind, options, salt and bytes.
    """

    kind: Modality
    data: bytes = field(repr=False)
    type: str
    options: Mapping[str, MediaOption] = field(default_factory=dict)
    limits: MediaLimits = MediaLimits()
    salt: str | None = None
    key: str = field(init=False)

    def __post_init__(self) -> None:
        about = f"{self.kind} {sorted(self.options.items())}"
        salted = about if self.salt is None else f"{about} {self.salt!a}"
        digest = hashlib.sha256(f"{salted}\n".encode())
        digest.update(self.data)
        object.__setattr__(self, "key", digest.hexdigest())


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Tokens of a prompt that stand for an item, or for a part of it.

    They are the prompt's tokens `start` to `start + tokens - 1`, placeholders each, whose ids mean
    nothing. An item whose tokens have others between them (the ends of a picture's rows) has
    several spans, in order; `first` is how many of its placeholders come before this one's.
    """

    start: int
    tokens: int
    media: Media
    first: int = 0

    @property
    def end(self) -> int:
        """The position of the first token behind it."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt with media: its tokens, and the spans of its items, ascending and apart."""

    token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...]


class PlainText(str):
    """Text in which nothing is read as a special token or a placeholder."""

    __slots__ = ()
