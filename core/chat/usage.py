"""Token counts. The endpoint layer counts, so no backend can get it wrong."""

from core.schemas.common import PromptTokensDetails, Usage
from core.types import Delta, GenerationRequest


class UsageCounter:
    """Counts one answer: every prompt once, whatever `n` is, and every token that was sampled."""

    def __init__(self) -> None:
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add_prompt(self, request: GenerationRequest) -> None:
        self._prompt_tokens += len(request.prompt_token_ids)

    def add(self, delta: Delta) -> None:
        self._cached_tokens += delta.cached_tokens
        self._completion_tokens += len(delta.token_ids)

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
        )
