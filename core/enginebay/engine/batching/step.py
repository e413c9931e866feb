"""What one step runs: decoding choices first, then chunks of prompts, within the limits."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from enginebay.contract.media import Media, MediaSpan
from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter, Predictions
from enginebay.engine.batching.pace import PrefillPace
from enginebay.engine.batching.runner import Chunk, Runner, Sampler
from enginebay.engine.batching.spans import ends_before
from enginebay.engine.batching.speculation import Speculation

logger = logging.getLogger(__name__)

# Rows of logits, each as long as the vocabulary, that a step computes for logprobs of prompts.
_PROMPT_ROWS = 64

_PROMPT_STEPS = 4
"""Steps of prompts alone at most, between two in which others decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Sizes of a batch, in choices and tokens.

    `max_batch_size`: choices that run together. `batch_tokens`: prompt tokens of one step.
    `prefill_tokens`: of each prompt, on average, while others decode; fewer where a pass would take
    too long, which is `prefill_slowdown` times the usual time (`PrefillPace`). `draft_tokens`:
    drafted for all choices of one step together. `deterministic`: the passes of a request that has
    a seed, or samples greedily, have the same shapes whenever it runs alone.
    """

    max_batch_size: int
    batch_tokens: int = 2048
    prefill_tokens: int = 256
    prefill_slowdown: float | None = None
    draft_tokens: int = 64
    deterministic: bool = False

    def fixes(self, sampling: SamplingParams) -> bool:
        """Whether passes with these params must not depend on the cache, or on how long they take.

        Numbers of other rows in a pass, or of other passes, are rounded differently.
        """
        return self.deterministic and (sampling.seed is not None or sampling.temperature == 0)


@dataclass(frozen=True, slots=True, eq=False)
class Work(Generic[Sampler]):
    """What a step runs for one choice; `draft` are the draft tokens at the end of the chunk.

    `reads_prompt`: the logits of all of its tokens are wanted, for logprobs of the prompt.
    """

    choice: ChoiceState[Sampler]
    chunk: Chunk
    draft: tuple[int, ...] = ()
    reads_prompt: bool = False

    @property
    def ends(self) -> bool:
        """Whether the choice's next token can be sampled when the chunk has been run."""
        end = self.chunk.start + len(self.chunk.token_ids) - len(self.draft)
        return end == len(self.choice.token_ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt, or of what is computed again; 0 if it only decodes."""
        tokens = len(self.chunk.token_ids) - len(self.draft)
        return tokens if tokens > 1 else 0

    @property
    def cache_ids(self) -> list[int]:
        """What the prefix cache remembers of the chunk (`ChoiceState.cache_ids`)."""
        start, end = self.chunk.start, self.chunk.start + len(self.chunk.token_ids)
        return [*self.choice.cache_ids[start:end], *self.draft]


class StepDivider(Generic[Sampler]):
    """Divides a step among the running choices.

    While others decode, a step encodes at most one item of media, or those of one prompt that has
    to be run whole, so that nobody waits for more.
    """

    def __init__(
        self,
        runner: Runner[Any, Sampler],
        limits: BatchLimits,
        drafter: Drafter | None,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._drafter = drafter
        self._pace = PrefillPace(limits.prefill_tokens, limits.prefill_slowdown)
        self._predictions = Predictions()
        self._speculation = Speculation(clock, even=runner.memory.even)
        self._clock = clock
        self._prompts_left: int | None = None  # before those that decode have their turn again

    def divide(self, choices: list[ChoiceState[Sampler]], free: int) -> list[Work[Sampler]]:
        """The work of these choices, with room for `free` more tokens in the cache."""
        self._speculation.ended(choices)
        decoding = [s for s in choices if s.pending == 1]
        prefilling = [s for s in choices if s.pending > 1]
        free -= len(decoding)
        budget = self._limits.batch_tokens
        encoder = _EncoderTurn(self._runner, one=bool(decoding))
        if decoding and prefilling:
            paced = self._pace.chunk_tokens(len(prefilling))
            if not self._runner.memory.even:
                most = max(budget - len(decoding), 1)
                budget = min(paced, most)
                if self._limits.prefill_slowdown is None:
                    budget = self._tiled(budget, len(decoding), most)
            elif work := self._turn(paced, prefilling, free, encoder):
                return work
            else:
                prefilling = []
        self._prompts_left = None
        drafts = {} if prefilling else self._draft(decoding, free)
        self._speculation.begins(decoding, drafts, alone=not prefilling)
        prompts = self._prompts(prefilling, budget, free, encoder)
        return [*(_decode(s, tuple(drafts.get(s, ()))) for s in decoding), *prompts]

    def _prompts(
        self,
        prefilling: Iterable[ChoiceState[Sampler]],
        budget: int,
        free: int,
        encoder: "_EncoderTurn",
    ) -> list[Work[Sampler]]:
        """Chunks of prompts of at most `budget` tokens, with room for `free`."""
        work: list[Work[Sampler]] = []
        rows = _PROMPT_ROWS
        for choice in prefilling:
            tokens = min(choice.pending, budget, free)
            if choice.reads_prompt:
                tokens = min(tokens, rows)
                rows -= tokens
            if self._is_whole(choice):
                tokens = choice.pending if budget > 0 and choice.pending <= free else 0
            if tokens <= 0 and choice.reads_prompt:
                continue
            if tokens <= 0:
                break
            if choice.request.media:
                start, memory = choice.computed, self._runner.memory
                whole = choice.request.request_id if self._is_whole(choice) else None
                take = partial(encoder.take, whole)
                spans = choice.request.media
                if not encoder.has_all(spans, start, start + tokens):
                    continue
                end = ends_before(spans, start, start + tokens, start + free, memory, take)
                tokens = end - start
                if tokens <= 0 or (whole and tokens < choice.pending):
                    continue
            work.append(_prefill(choice, tokens))
            budget -= tokens
            free -= tokens
        return work

    def took(self, work: Sequence[Work[Sampler]], seconds: float) -> None:
        """The step with this work has taken so long."""
        if any(w.chunk.request for w in work):  # items are encoded in a pass of theirs
            return
        decodes = any(not w.prompt_tokens for w in work)
        self._pace.took(seconds, sum(w.prompt_tokens for w in work), decodes=decodes)

    def _turn(
        self,
        paced: int,
        prefilling: Iterable[ChoiceState[Sampler]],
        free: int,
        encoder: "_EncoderTurn",
    ) -> list[Work[Sampler]]:
        """A step of prompts alone; empty if it is the turn of those that decode.

        A step with both would be computed in parts anyway. Those that decode wait for `paced`
        tokens, so that more of them decode together from then on.
        """
        most, tile = self._limits.batch_tokens, self._runner.memory.tile
        left = self._prompts_left
        if left is None:
            tiles = max(round(paced / tile), 1)
            whole = self._limits.prefill_slowdown is None
            left = min(tiles * tile if whole else paced, _PROMPT_STEPS * most)
            budget = min(left, most)
        else:
            budget = min(left // tile * tile, most)
        work = self._prompts(prefilling, budget, free, encoder)
        if work:
            self._prompts_left = left - _tokens(work)
        return work

    def _tiled(self, tokens: int, decoding: int, most: int) -> int:
        """About so many tokens of prompts, at `most`, so that no tile is nearly empty."""
        tile = self._runner.memory.tile
        tiles = round((tokens + decoding) / tile)
        whole = tiles * tile - decoding
        if whole > most:
            whole -= tile
        return whole if whole > 0 else tokens

    def _is_whole(self, choice: ChoiceState[Sampler]) -> bool:
        memory = self._runner.memory
        return not memory.chunks or (memory.media_spans == "prompt" and bool(choice.request.media))

    def _draft(
        self, decoding: list[ChoiceState[Sampler]], room: int
    ) -> Mapping[ChoiceState[Sampler], Sequence[int]]:
        most = min(room, self._limits.draft_tokens, self._limits.batch_tokens - len(decoding))
        decoding = [s for s in decoding if not self._limits.fixes(s.request.sampling)]
        predicted = [s for s in decoding if s.request.predicted_token_ids]
        drafter = self._drafter
        if not (drafter or predicted) or not self._runner.memory.cuts:
            return {}
        try:
            offered = {**self._predictions.draft(_wanted(predicted, self._predictions))}
            others = _wanted([s for s in decoding if s not in offered], drafter)
            if drafter and drafter.is_free:
                offered |= drafter.draft(others)
            drafts = self._of_offered(len(decoding), offered, most)
            if drafter and not drafter.is_free:
                most -= sum(map(len, drafts.values()))
                drafts |= self._drafted(drafter, len(decoding), others, most)
            return drafts
        except Exception:
            logger.exception("drafting tokens failed; continuing without speculative decoding")
            self._drafter = None
            return {}

    def _of_offered(
        self, decoding: int, offered: Mapping[ChoiceState[Sampler], Sequence[int]], most: int
    ) -> dict[ChoiceState[Sampler], Sequence[int]]:
        """What pays of drafts that took no time; of the others, too, it is seen what they are."""
        lengths = {choice: len(token_ids) for choice, token_ids in offered.items()}
        planned = self._speculation.plan(decoding, lengths, most, free=True)
        for choice, token_ids in offered.items():
            self._speculation.watch(choice, token_ids)
        return {choice: offered[choice][:length] for choice, length in planned.items()}

    def _drafted(
        self,
        drafter: Drafter,
        decoding: int,
        wanted: Mapping[ChoiceState[Sampler], int],
        most: int,
    ) -> Mapping[ChoiceState[Sampler], Sequence[int]]:
        """What is drafted where the time that it takes pays."""
        planned = self._speculation.plan(decoding, wanted, most, free=False)
        if not planned:
            return {}
        began = self._clock()
        ready = drafter.ready(planned)
        read = self._clock()
        drafts = drafter.draft(ready) if ready else {}
        seconds = self._clock() - read
        self._speculation.drafted(max(ready.values(), default=0), seconds, read - began)
        for choice, token_ids in drafts.items():
            self._speculation.watch(choice, token_ids)
        return drafts


class _EncoderTurn:
    """Which items a step may encode: any, or one of them, or those of one whole prompt."""

    def __init__(self, runner: Runner[Any, Any], *, one: bool) -> None:
        self._runner = runner
        self._one = one
        self._taken: set[str] = set()
        self._prompt: str | None = None

    def has_all(self, spans: Sequence[MediaSpan], start: int, end: int) -> bool:
        """Whether all items of a chunk are ready, so that they are encoded together.

        While others decode, this does not matter: items are encoded one by one.
        """
        if self._one:
            return True
        items = [span.media for span in spans if span.start < end and span.end > start]
        missing = [item for item in items if not self._runner.encoded(item)]
        ready = [self._runner.ready(item) for item in missing]  # each is prepared from now on
        return all(ready)

    def take(self, prompt: str | None, media: Media) -> bool:
        """Whether the item may be in this step; `prompt` is what has to be run whole with it."""
        if self._runner.encoded(media) or media.key in self._taken:
            return True
        if self._one and self._taken and (prompt is None or prompt != self._prompt):
            return False
        if not self._runner.ready(media):
            return False
        self._taken.add(media.key)
        self._prompt = prompt
        return True


def _tokens(work: Iterable[Work[Sampler]]) -> int:
    return sum(len(each.chunk.token_ids) for each in work)


def _wanted(
    choices: Iterable[ChoiceState[Sampler]], drafter: Drafter | None
) -> dict[ChoiceState[Sampler], int]:
    """How many tokens may be drafted for each choice at most."""
    most = drafter.tokens if drafter else 0
    left = ((choice, min(most, choice.completion.tokens_left - 1)) for choice in choices)
    return {choice: tokens for choice, tokens in left if tokens > 0}


def _decode(choice: ChoiceState[Sampler], draft: tuple[int, ...]) -> Work[Sampler]:
    token_ids = (choice.token_ids[-1], *draft)
    return Work(choice, _chunk(choice, token_ids, len(token_ids)), draft)


def _prefill(choice: ChoiceState[Sampler], tokens: int) -> Work[Sampler]:
    end = choice.computed + tokens
    token_ids = choice.token_ids[choice.computed : end]
    if choice.reads_prompt:
        return Work(choice, _chunk(choice, token_ids, tokens), reads_prompt=True)
    return Work(choice, _chunk(choice, token_ids, int(end == len(choice.token_ids))))


def _chunk(
    choice: ChoiceState[Sampler], token_ids: list[int] | tuple[int, ...], logits: int
) -> Chunk:
    assert choice.slot is not None
    request = choice.request
    with_media = request if request.media else None
    return Chunk(choice.slot, choice.computed, token_ids, logits, request.adapter, with_media)
