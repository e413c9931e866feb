"""The engine: the shared scheduler over a model of transformers, with its tokenizer."""

import gc
from collections.abc import Sequence

import torch
from torch import Tensor

from enginebay import (
    BatchingEngine,
    BatchLimits,
    Drafter,
    GenerationRequest,
    GrammarCompiler,
    InvalidRequestError,
    KvStore,
    Media,
    MediaPrompt,
    ModelInfo,
)
from enginebay_checkpoint.media_tokens import MediaTokenizer
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.lora import Adapters
from enginebay_hf.sampler_state import SamplerState
from enginebay_hf.sampling_runner import SamplingRunner


class HFEngine(BatchingEngine[Tensor, SamplerState]):
    """Batches requests to one model of transformers."""

    def __init__(
        self,
        runner: SamplingRunner,
        tokenizer: Tokenizer,
        info: ModelInfo,
        limits: BatchLimits,
        *,
        eos_token_ids: frozenset[int],
        drafter: Drafter | None = None,
        compiler: GrammarCompiler | None = None,
        adapters: Adapters | None = None,
        media_tokenizer: MediaTokenizer | None = None,
        kv_store: KvStore | None = None,
    ) -> None:
        super().__init__(
            runner,
            tokenizer,
            info,
            limits,
            eos_token_ids=eos_token_ids,
            drafter=drafter,
            compiler=compiler,
            adapters=adapters,
            kv_store=kv_store,
        )
        self._media_tokenizer = media_tokenizer

    def add_request(self, request: GenerationRequest) -> None:
        if self._runner.memory.media_spans == "prompt" and not request.media:
            kinds = " or ".join(sorted(self.info.modalities))
            raise InvalidRequestError(
                f"this model answers prompts with media only: {kinds}", param="messages"
            )
        super().add_request(request)

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        if self._media_tokenizer is None:
            return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)
        return self._media_tokenizer.tokenize(pieces, add_special_tokens=add_special_tokens)

    def close(self) -> None:
        super().close()
        del self._runner, self._scheduler, self._slots
        self._adapters = self._saver = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
