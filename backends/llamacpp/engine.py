"""The engine: the shared scheduler over a GGUF model, with llama.cpp's own tokenizer."""

from backends.llamacpp.adapters import Adapters
from backends.llamacpp.runner import LlamaRunner
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import (
    BatchingEngine,
    BatchLimits,
    Drafter,
    GrammarCompiler,
    ModelInfo,
    Rows,
    RowSampler,
)


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
    ) -> None:
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
        )
