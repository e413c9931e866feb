"""What the engines of embedding models and rerankers have in common."""

from collections.abc import Sequence
from dataclasses import replace

from backends.batching.limits import Limits
from backends.llamacpp.embedding import EmbeddingContext, Vector
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import (
    ContextLengthExceededError,
    Engine,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
)


class PoolingEngine(Engine):
    """Computes vectors and generates nothing."""

    def __init__(self, context: EmbeddingContext, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self.info = replace(
            info,
            max_batch_size=context.max_texts,
            generates=False,
            chat_template=None,
            chat_templates={},
        )
        self._context = context
        self._tokenizer = tokenizer
        self._limits = Limits(context_length=info.context_length, vocab_size=info.vocab_size)

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

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        self._limits.check_tokens(token_ids, "tokens")
        return self._tokenizer.decode(token_ids)

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode_plain(text, add_special_tokens=add_special_tokens)

    def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        special = self._tokenizer.special_token_ids
        return self.detokenize([i for i in token_ids if i not in special])

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
