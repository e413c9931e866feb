"""The engine: the shared scheduler over a GGUF model, with llama.cpp's own tokenizer."""

from collections.abc import Sequence

from enginebay import (
    BatchingEngine,
    BatchLimits,
    Drafter,
    GrammarCompiler,
    KvStore,
    Media,
    MediaPrompt,
    ModelInfo,
    Rows,
    RowSampler,
)
from enginebay_llamacpp.adapters import Adapters
from enginebay_llamacpp.media import MediaStore
from enginebay_llamacpp.runner import LlamaRunner
from enginebay_llamacpp.tokenizer import Tokenizer


class LlamaCppEngine(BatchingEngine[Rows, RowSampler]):
    """Batches requests to one GGUF model."""

    def __init__(
        self,
        runner: LlamaRunner,
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: BatchLimits,
        drafter: Drafter | None = None,
        compiler: GrammarCompiler | None = None,
        adapters: Adapters | None = None,
        media: MediaStore | None = None,
        kv_store: KvStore | None = None,
    ) -> None:
        """`media`: that of the runner; None for a model that takes text only."""
        super().__init__(
            runner,
            tokenizer,
            info,
            limits,
            eos_token_ids=tokenizer.eos_token_ids,
            new_detokenizer=tokenizer.detokenizer,
            drafter=drafter,
            compiler=compiler,
            adapters=adapters,
            kv_store=kv_store,
        )
        self._media = media

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        if self._media is None:
            return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)
        return self._media.tokenize(pieces, add_special_tokens=add_special_tokens)
