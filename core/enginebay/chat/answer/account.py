"""What requests use of models, counted where it is used."""

from dataclasses import dataclass

from enginebay.config.keys import Key


@dataclass(slots=True)
class Used:
    """Requests and their tokens; `cached_tokens` are some of the prompts'."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All that limits of tokens are about."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, other: "Used") -> None:
        """Count what another one has counted."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens

    def since(self, other: "Used") -> "Used":
        """What has been counted since it was as `other`."""
        return Used(
            self.requests - other.requests,
            self.prompt_tokens - other.prompt_tokens,
            self.cached_tokens - other.cached_tokens,
            self.completion_tokens - other.completion_tokens,
        )


class Account:
    """What requests have used so far, by the names of models in the config; without limits."""

    def __init__(self) -> None:
        self.used: dict[str, Used] = {}

    def of(self, model: str) -> Used:
        """What was used of a model, to be added to as it is used."""
        used = self.used.get(model)
        if used is None:
            used = self.used[model] = Used()
        return used

    def require_tokens(self, key: Key) -> None:
        """Raise `TokenLimitError` if a key has reached a limit of tokens."""
