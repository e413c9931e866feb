"""Answers about what API keys use."""

from typing import Literal

from pydantic import BaseModel


class UsageEntry(BaseModel):
    """What a key has used of a model on a day of UTC.

    `key`: its name, null for requests without a key. `model`: its name in the config; adapters
    count for it. `cached_tokens` are some of the prompts'.
    """

    key: str | None
    model: str
    day: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class LimitEntry(BaseModel):
    """A limit, what is used of it and what remains.

    `reset_s`: seconds after which nothing of it is used, if nothing else is meanwhile; null where
    that is not known.
    """

    limit: int
    used: int
    remaining: int
    reset_s: float | None


class UsageLimits(BaseModel):
    """The limits of the key that asks; null for those that it does not have."""

    requests_per_minute: LimitEntry | None = None
    concurrent_requests: LimitEntry | None = None
    tokens_per_minute: LimitEntry | None = None
    tokens_per_day: LimitEntry | None = None


class UsageList(BaseModel):
    """What keys have used, by day, key and model."""

    object: Literal["list"] = "list"
    data: list[UsageEntry]
    limits: UsageLimits
