"""What the engines of embedding models and rerankers have in common."""

from collections.abc import Sequence
from dataclasses import replace

from backends.llamacpp.embedding import EmbeddingContext, Vector
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import (
    ContextLengthExceededError,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    RequestLimits,
    TokenizingEngine,
)


class PoolingEngine(TokenizingEngine):
    """Computes vectors and generates nothing."""

    def __init__(self, context: EmbeddingContext, tokenizer: Tokenizer, info: ModelInfo) -> None:
        super().__init__(
            tokenizer, RequestLimits(context_length=info.context_length, vocab_size=info.vocab_size)
        )
        self.info = replace(
            info,
            max_batch_size=context.max_texts,
            generates=False,
            chat_template=None,
            chat_templates={},
        )
        self._context = context

    def vectors(self, prompts: Sequence[Sequence[int]]) -> list[Vector]:
        """A vector of each prompt. `InvalidRequestError` for one that llama.cpp cannot take."""
        for prompt in prompts:
            self._check(prompt)
        return self._context.embed(prompts)

    def add_request(self, request: GenerationRequest) -> None:
        raise InvalidRequestError("this model generates no text", param="model")

    def step(self) -> tuple[()]:
        return ()

    def abort_request(self, request_id: str) -> None:
        pass

    def close(self) -> None:
        self._context.close()

    def _check(self, prompt: Sequence[int]) -> None:
        """Anything else could end the process."""
        if not prompt:
            raise InvalidRequestError("the input is empty", param="input")
        if len(prompt) > self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens. "
                f"However, your input has {len(prompt)} tokens. Please shorten it.",
                param="input",
            )
        self._limits.check_tokens(prompt, "input")
