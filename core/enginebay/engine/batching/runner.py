"""The interface of a model to the scheduler: run chunks, sample, copy and truncate the cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from enginebay.contract.media import Media
from enginebay.contract.types import GenerationRequest, TokenLogprob
from enginebay.engine.sampler.logits import Mask

Logits = TypeVar("Logits")
"""Logits of one forward pass, `[rows, vocabulary]`, in the runner's own form."""

Sampler = TypeVar("Sampler")
"""The sampling state of one choice: its params, its random numbers, the tokens it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerMemory:
    """The KV cache of a model as the scheduler sees it: slots with one sequence each.

    `slots`: how many sequences it holds at once, running or cached.
    `tokens`: how many tokens all slots hold together.
    `chunks`: a prompt may be run in several chunks; if not, it is run whole.
    `cuts`: a slot can be truncated and partly copied; if not (recurrent states), it can only be
    continued at its end, copied whole or cleared.
    `shares`: a copy takes no extra memory.
    `one_adapter`: all chunks of a run must have the same adapter.
    `neighbours`: a run is fastest with the lowest slots, without gaps.
    `even`: a run reads the weights once for each length that its chunks have, so that it is fastest
    where all are as long: prompts and choices that decode are run in turn.
    `tile`: attention takes about the same time for this many tokens as for a few.
    `media_spans`: whether chunks may end within the tokens of an item ("cut") or not ("whole",
    where these see each other), or a prompt with items is run whole and shares nothing ("prompt",
    where all of it sees itself).
    `media_apart`: a chunk is either text, or tokens of one span of an item.
    """

    slots: int
    tokens: int
    chunks: bool = True
    cuts: bool = True
    shares: bool = False
    one_adapter: bool = False
    neighbours: bool = False
    even: bool = False
    tile: int = 1
    media_spans: Literal["cut", "whole", "prompt"] = "cut"
    media_apart: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, to be run at positions `start` and up of a slot.

    `logits` is how many of its last tokens need logits: none before the end of a prompt, one at its
    end and for a decoded token, more to verify draft tokens.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    logits: int = 0
    adapter: str | None = None
    request: GenerationRequest | None = None


class MemoryFullError(Exception):
    """The cache has no room for a chunk after all. Nothing was run or changed."""


class Sampled(NamedTuple):
    """A sampled token, and its logprobs if the request asks for them."""

    token_id: int
    logprob: TokenLogprob | None = None


class Runner(ABC, Generic[Logits, Sampler]):
    """A loaded model with its memory. Every method runs on the engine thread.

    An exception from `run` or `sample` does not identify the request at fault; the engine then
    calls `clear()` and runs the sequences one at a time to find it.
    """

    memory: RunnerMemory
    state_layout: str | None = None
    """How saved states are laid out: equal for runners of a model that can take each other's.

    None: this runner cannot save any.
    """

    @abstractmethod
    def run(self, chunks: Sequence[Chunk]) -> Logits:
        """One forward pass: float32 rows for the wanted logits, chunk by chunk, token by token.

        There is at most one chunk per slot, and `start` is the slot's current length.
        """

    @abstractmethod
    def sampler(self, request: GenerationRequest, index: int) -> Sampler:
        """Sampling state of choice `index`; a `ServingError` for params it cannot honour."""

    @abstractmethod
    def sample(
        self,
        logits: Logits,
        rows: Sequence[int],
        samplers: Sequence[Sampler],
        masks: Sequence[Mask | None],
    ) -> list[Sampled]:
        """One token per sampler, `samplers[i]` from row `rows[i]`; each records its own.

        The same row may come several times (choices of one prompt), a sampler only once. Only
        tokens that `masks[i]` allows, whatever else the params forbid; None allows all.
        """

    @abstractmethod
    def force(self, logits: Logits, row: int, sampler: Sampler, token_id: int) -> Sampled:
        """Take this token instead of sampling; the sampler records it as its own."""

    @abstractmethod
    def accept(self, sampler: Sampler, token_id: int) -> None:
        """Record a token that was not sampled and has no logits."""

    def restart(
        self, sampler: Sampler, request: GenerationRequest, index: int, token_ids: Sequence[int]
    ) -> Sampler:
        """The sampler of choice `index` with these tokens, after later ones were taken back.

        By default a new one. One that goes on with its random numbers does not repeat them.
        """
        self.release(sampler)
        fresh = self.sampler(request, index)
        for token_id in token_ids:
            self.accept(fresh, token_id)
        return fresh

    @abstractmethod
    def logprobs(
        self, logits: Logits, rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        """The logprob and rank of `token_ids[i]` by row `rows[i]`, and the `top` likeliest."""

    @abstractmethod
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of `source` into the empty slot `target`."""

    @abstractmethod
    def cut(self, slot: int, tokens: int) -> None:
        """Truncate a slot to its first `tokens`; 0 empties it."""

    @abstractmethod
    def clear(self) -> None:
        """Empty every slot, whatever state a failure has left them in."""

    def encoded(self, media: Media) -> bool:
        """Whether an item can be run without encoding it first, which takes long."""
        return True

    def ready(self, media: Media) -> bool:
        """Whether an item can be encoded now; if not, another thread prepares it from now on."""
        return True

    def wait(self) -> None:
        """Wait a moment for items that are being prepared, with nothing else to do."""

    def save(self, slot: int, tokens: int) -> memoryview:
        """A copy of what a slot holds, which are so many tokens; quickly, as everyone waits."""
        raise NotImplementedError

    def fingerprint(self, adapter: str) -> str | None:
        """What tells the adapter's weights from all others.

        None: it does not know, or not any more; then its sequences are not saved.
        """
        return None

    def restore(self, slot: int, state: memoryview, held: int, tokens: int) -> None:
        """Fill an empty slot with the first `tokens` of a saved state that held `held` tokens.

        Without `cuts` these are all. If it raises an exception, the slot is emptied by `cut`.
        """
        raise NotImplementedError

    def release(self, sampler: Sampler) -> None:
        """Free what a sampler holds outside Python."""

    def close(self) -> None:
        """Free the model."""
