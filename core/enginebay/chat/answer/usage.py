"""Token counts and times.

The endpoint layer counts tokens, so no backend can get it wrong. A chat backend returns no tokens;
then its own counts are used, and as long as it has told none, each part counts as a token.
"""

from time import monotonic

from enginebay.chat.answer.account import Used
from enginebay.chat.schemas.usage_bodies import (
    CompletionTokensDetails,
    LlamaTimings,
    PromptProgress,
    PromptTokensDetails,
    Timings,
    Usage,
)
from enginebay.contract.types import Delta, GenerationRequest, Prefill, TokenCounts


class UsageCounter:
    """Counts one answer: every prompt once, whatever `n` is, and every token that was sampled.

    `received` is when its request came, by `time.monotonic`; now, if that is not known. `used`:
    where all that is used of its model is counted, with what its prompts have begun with.
    `last_token_at`: when the last delta arrived, `received` before the first.
    """

    def __init__(self, received: float | None = None, used: Used | None = None) -> None:
        self._used = used or Used()
        self.received = monotonic() if received is None else received
        self._prompts: list[int] = []  # tokens of each choice's prompt
        self._prompt_tokens = 0
        self._media_tokens: dict[str, int] = {}
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._reasoning_tokens: dict[int, int] = {}
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._first_token_at: float | None = None
        self.last_token_at = self.received
        self._constrained = False
        self._grammar_init_s = 0.0
        self._grammar_s = 0.0

    def add_prompt(self, request: GenerationRequest) -> None:
        """Count the prompt of a request, whose choices follow those already counted."""
        tokens = len(request.prompt_token_ids)
        self._prompt_tokens += tokens
        self._prompts += [tokens] * request.n
        for span in request.media:
            name = f"{span.media.kind}_tokens"
            self._media_tokens[name] = self._media_tokens.get(name, 0) + span.tokens
        self._constrained |= request.sampling.constraint is not None

    def add(self, delta: Delta) -> None:
        """Count a delta. The parts of a chat count as a token each until its own counts come."""
        tokens = len(delta.token_ids) or (0 if delta.usage else len(delta.parts))
        self._completion_tokens += tokens
        self._used.completion_tokens += tokens
        if delta.cached_tokens:
            self._cached_tokens += delta.cached_tokens
            self._used.cached_tokens += delta.cached_tokens
        if delta.drafted_tokens:
            self._drafted_tokens += delta.drafted_tokens
            self._accepted_tokens += delta.accepted_tokens
        if self._constrained:
            self._grammar_init_s += delta.grammar_init_s
            self._grammar_s += delta.grammar_s
        self.last_token_at = monotonic()
        if self._first_token_at is None:
            self._first_token_at = self.last_token_at

    def take(self, counts: TokenCounts) -> None:
        """Take the counts of a chat, which is the one request of its answer."""
        self._used.prompt_tokens += counts.prompt_tokens - self._prompt_tokens
        self._used.cached_tokens += counts.cached_tokens - self._cached_tokens
        self._used.completion_tokens += counts.completion_tokens - self._completion_tokens
        self._prompt_tokens = counts.prompt_tokens
        self._cached_tokens = counts.cached_tokens
        self._completion_tokens = counts.completion_tokens
        self._media_tokens = {f"{kind}_tokens": n for kind, n in counts.media_tokens.items()}
        if counts.reasoning_tokens is not None:
            self._reasoning_tokens = {0: counts.reasoning_tokens}

    def set_reasoning(self, choice: int, tokens: int) -> None:
        """Record how many tokens of a choice are reasoning so far."""
        self._reasoning_tokens[choice] = tokens

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds to the first delta; None before that."""
        return None if self._first_token_at is None else self._first_token_at - self.received

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=self._cached_tokens, **self._media_tokens
            ),
            extra=self._timings(),
        )
        details = CompletionTokensDetails()
        if self._reasoning_tokens:
            details.reasoning_tokens = sum(self._reasoning_tokens.values())
        if self._drafted_tokens:
            details.accepted_prediction_tokens = self._accepted_tokens
            details.rejected_prediction_tokens = self._drafted_tokens - self._accepted_tokens
        if self._reasoning_tokens or self._drafted_tokens:
            usage.completion_tokens_details = details
        return usage

    def so_far(self, choice: int, completion_tokens: int) -> Usage:
        """The counts of one choice alone, for a chunk in mid-stream."""
        prompt_tokens = self._prompts[choice]
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )

    @property
    def llama_timings(self) -> LlamaTimings:
        """The counts and times so far, as llama-server writes them."""
        prefill, decode = self._phases()
        prompt, predicted = self._prompt_tokens - self._cached_tokens, self._completion_tokens
        timings = LlamaTimings(
            cache_n=self._cached_tokens,
            prompt_n=prompt,
            prompt_ms=prefill * 1000,
            prompt_per_token_ms=_ratio(prefill * 1000, prompt),
            prompt_per_second=_ratio(prompt, prefill),
            predicted_n=predicted,
            predicted_ms=decode * 1000,
            predicted_per_token_ms=_ratio(decode * 1000, predicted),
            predicted_per_second=_ratio(predicted, decode),
        )
        if self._drafted_tokens:
            timings.draft_n, timings.draft_n_accepted = self._drafted_tokens, self._accepted_tokens
        return timings

    def progress(self, prefill: Prefill) -> PromptProgress:
        """How far a prompt is read by now."""
        return PromptProgress(
            total=prefill.total,
            cache=prefill.cached,
            processed=prefill.done,
            time_ms=int((monotonic() - self.received) * 1000),
        )

    def _phases(self) -> tuple[float, float]:
        """Seconds up to the first token, and from there to the last one."""
        first = self.last_token_at if self._first_token_at is None else self._first_token_at
        return first - self.received, self.last_token_at - first

    def _timings(self) -> Timings:
        """WebLLM's formulas, over the tokens that were computed: cached ones took no time."""
        prefill, decode = self._phases()
        timings = Timings(
            e2e_latency_s=monotonic() - self.received,
            prefill_tokens_per_s=_ratio(self._prompt_tokens - self._cached_tokens, prefill),
            decode_tokens_per_s=_ratio(self._completion_tokens, decode),
            time_to_first_token_s=prefill,
            time_per_output_token_s=_ratio(decode, self._completion_tokens),
        )
        if self._constrained:
            timings.grammar_init_s = self._grammar_init_s
            timings.grammar_per_token_s = _ratio(self._grammar_s, self._completion_tokens)
        return timings


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
