"""What streaming and non-streaming responses of both APIs share."""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from, and how many of them stand for media, if any do."""

    cached_tokens: int
    image_tokens: int | None = None
    audio_tokens: int | None = None
    video_tokens: int | None = None


class CompletionTokensDetails(BaseModel):
    """What completion tokens were used for; `reasoning_tokens` count the tags of reasoning, too.

    `accepted_prediction_tokens` and `rejected_prediction_tokens` are those that were drafted, from
    the `prediction` of the request or otherwise, and were or were not what the model said.
    """

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Timings(BaseModel):
    """`usage.extra` of WebLLM (https://github.com/mlc-ai/web-llm): timings.

    All five are numbers, whatever happened: 0 where there is nothing to divide by. Constrained
    answers have two more: the time to compile the grammar, and the mean time per token spent on it.
    """

    e2e_latency_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    time_to_first_token_s: float
    time_per_output_token_s: float
    grammar_init_s: float | None = None
    grammar_per_token_s: float | None = None


class LlamaTimings(BaseModel):
    """The same as llama-server writes it (`timings`): counts, milliseconds and tokens a second.

    Prompt tokens that were cached, `cache_n`, are not in `prompt_n`. `draft_n` tokens were drafted,
    if any, and `draft_n_accepted` of them accepted.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class PromptProgress(BaseModel):
    """How far a prompt is read, as llama-server writes it: tokens, and time since the request."""

    total: int
    cache: int
    processed: int
    time_ms: int


class PromptUsage(BaseModel):
    """Tokens of all prompts of a request that generates nothing; the two counts are equal."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompts: Iterable[Sequence[int]]) -> Self:
        """The usage of these token ids."""
        tokens = sum(map(len, prompts))
        return cls(prompt_tokens=tokens, total_tokens=tokens)


class Usage(BaseModel):
    """Token counts of one request: the prompt once, the completions of all choices summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    extra: Timings | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were cached."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of thought; None if none were counted."""
        details = self.completion_tokens_details
        return details.reasoning_tokens if details else None


class WireAnswer(BaseModel):
    """What every response or stream event has besides its choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = None
    timings: LlamaTimings | None = None
    prompt_progress: PromptProgress | None = None


class PromptLogprob(BaseModel):
    """A candidate for one position of the prompt, as vLLM writes it; rank 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt its own entry and the likeliest ones, by token id.

The first token has none, since nothing comes before it.
"""
