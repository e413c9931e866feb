"""What a model's processor makes of an item: for the prompt, and for the tower."""

from dataclasses import dataclass
from typing import Protocol

from enginebay import Media
from enginebay_hf.media.towers import Tensors


@dataclass(frozen=True, slots=True)
class Outline:
    """What a prompt has of an item: `text`, with `tokens` placeholders among other words.

    `grids` are tensors that say where these are, of a model whose items have several positions.
    """

    text: str
    tokens: int
    grids: Tensors

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return len(self.text) + _nbytes(self.grids)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a tower takes of an item with so many placeholders."""

    tokens: int
    tensors: Tensors

    @property
    def nbytes(self) -> int:
        """Memory of its tensors."""
        return _nbytes(self.tensors)


class Preparing(Protocol):
    """The model's processor, which takes long unless what it makes is at hand."""

    def outline(self, media: Media) -> Outline:
        """What stands for an item: small, and kept long."""
        ...

    def prepare(self, media: Media) -> Prepared:
        """What is encoded of an item: large, at hand once behind `outline`, else made again."""
        ...

    def kept(self, media: Media) -> Prepared | None:
        """The same if it is at hand, which it is not any longer."""
        ...


def _nbytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
