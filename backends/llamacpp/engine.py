"""The engine: the shared scheduler over a GGUF model, with llama.cpp's own tokenizer."""

from backends.batching.drafts import Drafter
from backends.batching.engine import BatchingEngine
from backends.batching.scheduler import BatchLimits
from backends.llamacpp.adapters import Adapters
from backends.llamacpp.runner import LlamaLogits, LlamaRunner, LlamaSampler
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import GrammarCompiler, ModelInfo


class LlamaCppEngine(BatchingEngine[LlamaLogits, LlamaSampler]):
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
