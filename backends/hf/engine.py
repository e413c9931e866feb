"""The engine: the shared scheduler over a model of transformers, with its tokenizer."""

import gc

import torch
from torch import Tensor

from backends.checkpoint.tokenizer import Tokenizer
from backends.hf.lora import Adapters
from backends.hf.sampler_state import SamplerState
from backends.hf.sampling_runner import SamplingRunner
from enginebay import BatchingEngine, BatchLimits, Drafter, GrammarCompiler, ModelInfo


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
        )

    def close(self) -> None:
        super().close()
        del self._runner, self._scheduler
        self._adapters = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
