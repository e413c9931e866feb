"""What runners of models that take media have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch

from enginebay import Media, Modality
from enginebay_hf.media.inputs import MediaInputs, Sees
from enginebay_hf.sampling_runner import SamplingRunner, Vocabulary


class MediaRunner(SamplingRunner):
    """A runner whose chunks may have media, if there is a `media` that knows what to do.

    `ways` is how it can let the tokens of items attend.
    """

    ways: ClassVar[Sequence[Sees]] = ("past",)

    def __init__(self, vocabulary: Vocabulary, media: MediaInputs | None) -> None:
        super().__init__(vocabulary)
        self.media = media

    def encoded(self, media: Media) -> bool:
        return self.media is None or self.media.encoded(media)

    def ready(self, media: Media) -> bool:
        return self.media is None or self.media.ready(media)

    def wait(self) -> None:
        if self.media:
            self.media.wait()

    def clear(self) -> None:
        if self.media:
            self.media.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # too little memory may have been the failure

    def see(self, sees: Mapping[Modality, Sees]) -> None:
        """Let the tokens of each kind attend so, and tell the scheduler what that demands."""
        assert self.media
        self.media.sees = sees
        borders: Literal["cut", "whole", "prompt"] = "cut"
        if "prompt" in sees.values():
            borders = "prompt"
        elif {*sees.values()} - {"past"}:
            borders = "whole"
        self.memory = replace(self.memory, media_spans=borders)
