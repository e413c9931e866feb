"""One choice of a request in the batch."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Generic

from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import Delta, GenerationRequest, Prefill, TokenLogprob
from enginebay.engine.batching.runner import Sampled, Sampler
from enginebay.engine.batching.spans import cache_ids
from enginebay.engine.batching.taking_back import Uncertain
from enginebay.engine.completion import Completion, TokensToText


@dataclass(slots=True, eq=False)
class ChoiceState(Generic[Sampler]):
    """The tokens of one choice, and how many of them the model has computed.

    Prefill and decode are the same here: tokens missing from the KV cache are computed in chunks,
    and after the last one the next token is sampled. `siblings` are the other choices of the
    request while they wait for this one to prefill the shared prompt. `cached` is the number of
    tokens found in the cache when the choice was first admitted; None before that.
    `cache_ids` are the tokens as the prefix cache compares them: others for placeholders of media.
    `uncertain`: what it may have to take back, if it must not have certain texts.
    `drafted`: draft tokens so far; `accepted`: the places of those that were right.
    `prompt_logprobs` are those from the prompt's second token on, as far as they are known.
    """

    request: GenerationRequest
    index: int
    arrival: int
    sampler: Sampler
    completion: Completion
    siblings: list["ChoiceState[Sampler]"] = field(default_factory=list)
    token_ids: list[int] = field(init=False)
    cache_ids: list[int] = field(init=False)
    slot: int | None = None
    computed: int = 0
    cached: int | None = None
    finished: bool = False
    suspect: bool = False
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    uncertain: Uncertain | None = None
    _told: tuple[int, int] = 0, 0
    _reasoning_end: tuple[int, ReasoningBudget] | None = None
    _wants_prompt: bool = False

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.cache_ids = cache_ids(self.request) if self.request.media else self.token_ids

    def ask_for_prompt_logprobs(self) -> None:
        """Have the prompt computed with all logits, if the request wants its logprobs."""
        self._wants_prompt = self.request.sampling.prompt_logprobs is not None

    @property
    def known_logprobs(self) -> int:
        """How many prompt tokens already have logprobs and need not be computed again."""
        return len(self.prompt_logprobs)

    @property
    def reads_prompt(self) -> bool:
        """Whether prompt logprobs are still missing."""
        return self._wants_prompt and self.known_logprobs < len(self.request.prompt_token_ids) - 1

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.computed

    @property
    def prefill(self) -> Prefill:
        """How far the prompt is computed."""
        total = len(self.request.prompt_token_ids)
        return Prefill(total, self.cached or 0, min(self.computed, total))

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the lower priority number first, then the earlier arrival."""
        return self.request.priority, self.arrival

    @property
    def cache_key(self) -> Hashable:
        """Only choices with the same key may share a KV cache prefix."""
        return self.request.adapter, self.request.cache_salt

    def end_reasoning(self, budget: ReasoningBudget, detokenizer: TokensToText) -> bool:
        """Force the end of reasoning from now on, if it is reasoning; whether it is."""
        if self.finished:
            return False
        said = self.token_ids[len(self.request.prompt_token_ids) :]
        if not self.completion.end_reasoning(budget, said, detokenizer):
            return False
        if self._reasoning_end is None:  # later calls change nothing: all thought ends since
            self._reasoning_end = len(said), budget
        return True

    def go_back(self, completion: Completion, detokenizer: TokensToText) -> None:
        """Go on from its `uncertain` tokens, after later ones were taken back.

        `completion`: a new one for the same request.
        """
        assert self.uncertain
        tokens = self.uncertain.tokens
        at, budget = self._reasoning_end or (0, None)
        if budget:
            at = min(at, len(tokens))
            self._reasoning_end = at, budget
        for place in range(len(tokens) + 1):
            if budget and place == at:
                said = [sampled.token_id for sampled, _ in tokens[:place]]
                completion.end_reasoning(budget, said, detokenizer)
            if place < len(tokens):
                sampled, stays = tokens[place]
                completion.append(sampled.token_id, sampled.logprob, stays=stays)
        self.completion, self.finished = completion, False
        length = len(self.request.prompt_token_ids) + len(tokens)
        del self.token_ids[length:]
        del self.cache_ids[length:]
        self.accepted = [place for place in self.accepted if place < length]

    def append(self, sampled: Sampled, *, stays: bool = False) -> Delta:
        """Add a sampled token; returns the resulting delta. `stays`: it is not taken back."""
        prompt = len(self.request.prompt_token_ids)
        is_first = self.index == 0 and len(self.token_ids) == prompt
        self.token_ids.append(sampled.token_id)
        if self.cache_ids is not self.token_ids:
            self.cache_ids.append(sampled.token_id)
        delta = self.completion.append(sampled.token_id, sampled.logprob, stays=stays)
        self.finished = delta.finish_reason is not None
        # What may be taken back is told when that is certain.
        told = self.drafted, len(self.accepted)
        if told != self._told and (self.finished or self.uncertain is None):
            drafted, accepted = (now - then for now, then in zip(told, self._told, strict=True))
            delta = replace(delta, drafted_tokens=drafted, accepted_tokens=accepted)
            self._told = told
        if is_first:
            cached = self.cached or 0
            delta = replace(
                delta,
                prefill_tokens=prompt - cached,
                cached_tokens=cached,
                prompt_logprobs=(None, *self.prompt_logprobs) if self._wants_prompt else None,
            )
        return delta
