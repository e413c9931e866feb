"""A model's media: its processor, its towers, and what of them works."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from enginebay import Modality, ModelInfo
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.media_tokens import MediaTokenizer
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.media.inputs import MediaInputs
from enginebay_hf.media.processor import Processor
from enginebay_hf.media.towers import Towers

logger = logging.getLogger(__name__)


class MediaModel:
    """What a model does with media. `row_ids`: for each kind the token that stands for a row."""

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        tokenizer: Tokenizer,
        row_ids: Mapping[Modality, int],
        *,
        cache_bytes: int,
    ) -> None:
        self.row_ids = dict(row_ids)
        texts = {kind: tokenizer.token_text(row_id) for kind, row_id in row_ids.items()}
        towers = Towers(model, row_ids)
        self.processor = Processor(processor, texts, towers.grid_names)
        self._tokenizer = tokenizer
        self.inputs = MediaInputs(towers, self.processor, cache_bytes=cache_bytes)

    @property
    def kinds(self) -> frozenset[Modality]:
        """What it takes."""
        return frozenset(self.processor.row_texts)

    def drop(self, reasons: Mapping[Modality, str], checkpoint: Checkpoint) -> None:
        """Take these kinds no longer."""
        for kind, reason in reasons.items():
            self.processor.forget(kind)
            logger.warning("%s: no %s, because %s", checkpoint.path, kind, reason)

    def tokenizer(self) -> MediaTokenizer:
        """Makes prompts with the kinds that it takes."""
        processor = self.processor
        return MediaTokenizer(
            self._tokenizer,
            processor.outline,
            processor.row_texts,
            processor.placeholders.values(),
        )

    def told(self, info: ModelInfo) -> ModelInfo:
        """`info`, with the kinds that it takes."""
        return replace(
            info,
            modalities=self.kinds,
            placeholders=self.processor.placeholders,
            media_options=self.processor.options,
        )
