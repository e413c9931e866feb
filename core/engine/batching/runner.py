"""What the scheduler asks of a model: run chunks of tokens, sample, copy and cut its memory."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from core.contract.types import GenerationRequest, TokenLogprob
from core.engine.sampler.logits import Mask

Logits = TypeVar("Logits")
"""Logits of one forward pass, `[rows, vocabulary]`, in whatever form the runner likes."""

Sampler = TypeVar("Sampler")
"""The sampling state of one choice: its params, its random numbers, the tokens it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerMemory:
    """The key-value memory of a model as the scheduler sees it: slots, one sequence in each.

    `slots`: how many sequences it holds at once, running ones and remembered ones.
    `tokens`: how many tokens all slots hold together.
    `chunks`: a prompt may be run in several chunks; if not, it comes whole.
    `cuts`: a slot can forget the end of its tokens and go on from there, and a part of it can be
    copied; if not (recurrent states), a slot is continued where it ends, copied whole or cleared.
    `shares`: a copy takes no memory of its own.
    `one_adapter`: all chunks of a run must have the same adapter.
    `neighbours`: a run is fastest when its slots are the lowest ones, without gaps.
    """

    slots: int
    tokens: int
    chunks: bool = True
    cuts: bool = True
    shares: bool = False
    one_adapter: bool = False
    neighbours: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, to be run at positions `start` and up of a slot.

    `logits` is how many of its last tokens' logits are wanted: none before the end of a prompt,
    one at its end and for a decoded token, more where draft tokens are to be verified.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    logits: int = 0
    adapter: str | None = None


class MemoryFullError(Exception):
    """The memory has no room for a chunk after all. Nothing has been run, nothing has changed."""


class Sampled(NamedTuple):
    """A sampled token, and its logprobs if the request asks for them."""

    token_id: int
    logprob: TokenLogprob | None = None


class Runner(ABC, Generic[Logits, Sampler]):
    """A loaded model with its memory. Every method runs on the engine thread.

    An exception out of `run` or `sample` says nothing about whose fault it is; the engine then
    calls `clear()` and finds out by running the sequences one at a time.
    """

    memory: RunnerMemory

    @abstractmethod
    def run(self, chunks: Sequence[Chunk]) -> Logits:
        """One forward pass: float32 rows for the wanted logits, chunk by chunk, token by token.

        A slot has at most one chunk in it, and `start` is what the slot holds so far.
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
        """One token a sampler, `samplers[i]` by row `rows[i]`; each takes note of its own.

        The same row may come several times (choices of one prompt), a sampler only once. Only
        tokens that `masks[i]` allows, whatever else the params forbid; None allows all.
        """

    @abstractmethod
    def force(self, logits: Logits, row: int, sampler: Sampler, token_id: int) -> Sampled:
        """This token, whatever the row says; the sampler takes note of it as of its own."""

    @abstractmethod
    def accept(self, sampler: Sampler, token_id: int) -> None:
        """Take note of a token that was not sampled, and whose logits nobody has."""

    @abstractmethod
    def logprobs(
        self, logits: Logits, rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        """The logprob of `token_ids[i]` by row `rows[i]`, and the `top` likeliest beside it."""

    @abstractmethod
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let the empty slot `target` hold the first `tokens` of `source`, too."""

    @abstractmethod
    def cut(self, slot: int, tokens: int) -> None:
        """Forget all but the first `tokens` of a slot; 0 empties it."""

    @abstractmethod
    def clear(self) -> None:
        """Empty every slot, whatever state a failure has left them in."""

    def release(self, sampler: Sampler) -> None:
        """Free what a sampler holds outside Python."""

    def close(self) -> None:
        """Free the model."""
