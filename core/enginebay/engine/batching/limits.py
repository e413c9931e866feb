"""A model's limits; anything else is rejected before it can affect other requests."""

from collections.abc import Iterable
from dataclasses import dataclass

from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError
from enginebay.contract.types import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of a model.

    `max_choices`: how many choices one request may have, None for no limit.
    `adapters`: the adapters that requests may name. `eos_token_ids`: the tokens that end a
    completion.
    """

    context_length: int
    vocab_size: int
    max_choices: int | None = None
    adapters: tuple[str, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()

    def check(self, request: GenerationRequest) -> None:
        """Raise an `InvalidRequestError` for a request that cannot run."""
        prompt, sampling = request.prompt_token_ids, request.sampling
        if not prompt:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if len(prompt) >= self.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.context_length} tokens. However, "
                f"your prompt has {len(prompt)} tokens, which leaves no room for an answer. "
                "Please shorten it.",
                param="prompt",
            )
        if request.n < 1 or (self.max_choices and request.n > self.max_choices):
            most = f"1 to {self.max_choices}" if self.max_choices else "at least one"
            raise InvalidRequestError(
                f"n is {request.n}, and this model decodes {most} choices together", param="n"
            )
        if request.adapter is not None and request.adapter not in self.adapters:
            raise InvalidRequestError(
                f"this model has no adapter {request.adapter!r}", param="model"
            )
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
        if sampling.repetition_penalty <= 0:
            raise InvalidRequestError(
                "repetition_penalty must be above 0", param="repetition_penalty"
            )
        allowed = sampling.allowed_token_ids
        if allowed and sampling.min_tokens and self.eos_token_ids.issuperset(allowed):
            raise InvalidRequestError(
                "allowed_token_ids has only tokens that end the completion, which min_tokens "
                "forbids",
                param="allowed_token_ids",
            )
        self.check_tokens(prompt, "prompt")
        self.check_tokens(request.predicted_token_ids, "prediction")
        self.check_tokens(sampling.logit_bias, "logit_bias")
        self.check_tokens(sampling.stop_token_ids, "stop_token_ids")
        self.check_tokens(sampling.allowed_token_ids, "allowed_token_ids")

    def max_tokens(self, request: GenerationRequest) -> int:
        """The maximum completion length: as requested, limited by the context."""
        room = self.context_length - len(request.prompt_token_ids)
        asked = request.sampling.max_tokens
        return room if asked is None else min(asked, room)

    def check_tokens(self, token_ids: Iterable[int], param: str) -> None:
        """Raise an `InvalidRequestError` for ids that the model does not have."""
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"{param} has the token id {token_id}, but this model's are 0 to "
                    f"{self.vocab_size - 1}",
                    param=param,
                )
