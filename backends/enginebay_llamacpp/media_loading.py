"""From an mmproj file to what an engine needs of it, or to an error that says what to do."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from enginebay import BackendSettings, Modality, ModelInfo
from enginebay_llamacpp.context import Context
from enginebay_llamacpp.files import find_gguf, find_mmproj
from enginebay_llamacpp.media import OPTIONS, MediaStore
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.placeholders import placeholder
from enginebay_llamacpp.projector import Projector, Tile, tiles
from enginebay_llamacpp.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_AT_ONCE = 1024
"""Tokens of a picture that see each other, at most; more if a picture always has more."""


@dataclass(frozen=True, slots=True)
class LoadedProjector:
    """A projector that works, and an item of each kind it takes, as it splits them."""

    projector: Projector
    examples: Mapping[Modality, list[list[int] | Tile]]

    @property
    def at_once(self) -> int:
        """Rows that the context must be able to compute at once; 0 if any number will do."""
        found = [tile for pieces in self.examples.values() for tile in tiles(pieces)]
        seeing = [tile.tokens for tile in found if not tile.causal]
        return max(_AT_ONCE, *seeing) if seeing else 0

    def store(self, tokenizer: Tokenizer, options: LlamaCppOptions, context: Context) -> MediaStore:
        """Where the engine keeps the items of its prompts."""
        return MediaStore(
            self.projector,
            tokenizer,
            longest=context.at_once if self.at_once else None,
            cache_bytes=options.media_cache_mb << 20,
        )

    def add_to(self, info: ModelInfo, tokenizer: Tokenizer) -> ModelInfo:
        """What is known of the model, with the kinds of media that it takes."""
        templates = [*filter(None, [info.chat_template]), *info.chat_templates.values()]
        written = {
            kind: placeholder(kind, pieces, tokenizer, templates)
            for kind, pieces in self.examples.items()
        }
        return replace(
            info,
            modalities=frozenset(self.examples),
            placeholders={kind: text for kind, text in written.items() if text},
            media_options=OPTIONS if self.projector.sees else frozenset(),
        )


def load_projector(
    settings: BackendSettings, model: Model, options: LlamaCppOptions, *, gpu: bool
) -> LoadedProjector | None:
    """The one that the options name, or that lies beside the model; None without any.

    Something of each kind is encoded, so that a file that ends the process does it now.
    """
    if options.mmproj is False:
        return None
    if options.mmproj is None:
        path = find_mmproj(model.path)
    else:
        path = Path(settings.base) / Path(options.mmproj).expanduser()
    if path is None:
        return None
    projector = Projector(model, find_gguf(path), options, settings.report_progress, gpu=gpu)
    settings.report_progress(f"checking {path.name}", 0.93)
    examples = projector.examples()
    for pieces in examples.values():
        projector.check(pieces)
    logger.info("%s: %s takes %s", settings.name, path.name, " and ".join(sorted(examples)))
    return LoadedProjector(projector, examples)
