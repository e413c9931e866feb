"""What a chat template writes for a picture or a sound."""

from collections.abc import Iterable, Sequence

from enginebay import Modality
from enginebay_llamacpp.projector import Tile
from enginebay_llamacpp.tokenizer import Tokenizer

_WORDS: dict[Modality, tuple[str, ...]] = {
    "image": (
        "<__media__>",  # llama.cpp's own
        "(<image>./</image>)",
        "image<|media_content|><|media_pad|>",
        "<|IMAGE_PLACEHOLDER|>",
        "<image_placeholder>",
        "<image_soft_token>",
        "<|image_pad|>",
        "<IMG_CONTEXT>",
        "<|image|>",
        "<image>",
        "[IMG]",
    ),
    "audio": (
        "<__media__>",
        "<audio_soft_token>",
        "<|audio_pad|>",
        "<|AUDIO|>",
        "<|audio|>",
        "<audio>",
        "[AUDIO]",
    ),
}


def placeholder(
    kind: Modality,
    pieces: Sequence[list[int] | Tile],
    tokenizer: Tokenizer,
    templates: Iterable[str],
) -> str | None:
    """What these templates write for an item that is tokenized to `pieces`; None if nothing.

    The words around it are part of it where they are written, since they are in the pieces, too:
    `<|vision_start|><|image_pad|><|vision_end|>`.
    """
    places = [at for at, piece in enumerate(pieces) if isinstance(piece, Tile)]
    before = _text(pieces[: places[0]], tokenizer)
    behind = _text(pieces[places[-1] + 1 :], tokenizer)
    written = "\n".join(templates)
    for word in (*_WORDS[kind], ""):
        for text in (before + word + behind, before + word, word + behind, word):
            if text and text in written:
                return text
    return None


def _text(pieces: Sequence[list[int] | Tile], tokenizer: Tokenizer) -> str:
    return tokenizer.decode([i for piece in pieces if isinstance(piece, list) for i in piece])
