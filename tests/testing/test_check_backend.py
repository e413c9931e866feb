"""`check_backend` passes for an engine that keeps its promises, and fails for each broken one."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from enginebay import (
    Delta,
    Engine,
    EngineBackend,
    EngineStats,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    SamplingParams,
    ServingError,
)
from enginebay.testing import BrokenPromiseError, ScriptedEngine, check_backend
from enginebay.testing.scripted import END_OF_SEQUENCE

PIECES = ["Hi", " the", "re,", " how", " are", " you", "?", " ok"]
Steps = Iterable[tuple[str, Delta | ServingError]]


def engine() -> ScriptedEngine:
    return ScriptedEngine(PIECES)


async def test_scripted_engine_keeps_every_promise() -> None:
    await check_backend(engine)


async def test_a_backend_is_checked_too() -> None:
    await check_backend(lambda: EngineBackend(engine))


async def test_an_engine_without_constraints_promises_none() -> None:
    await check_backend(lambda: ScriptedEngine(PIECES, constraints=False))


class TwoFinishReasons(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            yield request_id, item
            if isinstance(item, Delta) and item.finish_reason:
                yield request_id, item


class NoFinishReason(ScriptedEngine):
    """Its last delta says nothing: whoever waits for it waits for ever."""

    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            yield request_id, replace(item, finish_reason=None)


class WrongIndex(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            yield request_id, replace(item, index=item.index + 1)


class LosesText(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            yield request_id, replace(item, text=item.text.replace("e", ""))


class ShowsEndOfSequence(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            text = item.text + "</s>" * (END_OF_SEQUENCE in item.token_ids)
            yield request_id, replace(item, text=text)


class ShowsStopString(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            stop = item.stop_reason if isinstance(item.stop_reason, str) else ""
            yield request_id, replace(item, text=item.text + stop)


class IgnoresAbort(ScriptedEngine):
    def abort_request(self, request_id: str) -> None:
        pass


class AbortOfUnknownFails(ScriptedEngine):
    def abort_request(self, request_id: str) -> None:
        if all(choice.request.request_id != request_id for choice in self._choices):
            raise KeyError(request_id)
        super().abort_request(request_id)


class PrefillsEveryChoice(ScriptedEngine):
    def _prefill(self, request: GenerationRequest) -> int:
        first = request.request_id not in self._prefilled
        return super()._prefill(request) * request.n if first else 0


class RefusalKills(ScriptedEngine):
    """Notices in `step` what it should have refused in `add_request`."""

    def add_request(self, request: GenerationRequest) -> None:
        short = request.prompt_token_ids[: self.info.context_length - 1]
        self._too_long = len(request.prompt_token_ids) > len(short)
        super().add_request(replace(request, prompt_token_ids=short))

    def step(self) -> Steps:
        if self._too_long:
            raise RuntimeError("out of memory")
        return super().step()


class TakesTooLongPrompts(ScriptedEngine):
    def add_request(self, request: GenerationRequest) -> None:
        short = request.prompt_token_ids[: self.info.context_length - 1]
        super().add_request(replace(request, prompt_token_ids=short))


class DropsParams(ScriptedEngine):
    """Claims to honour everything and honours what a script can."""

    def __init__(self, script: Sequence[str], **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.info = replace(self.info, unsupported=frozenset())


class IgnoresMaxTokens(ScriptedEngine):
    def add_request(self, request: GenerationRequest) -> None:
        sampling = replace(request.sampling, max_tokens=None)
        super().add_request(replace(request, sampling=sampling))


class IgnoresConstraints(ScriptedEngine):
    def add_request(self, request: GenerationRequest) -> None:
        sampling = replace(request.sampling, constraint=None)
        super().add_request(replace(request, sampling=sampling))


class SharesWhereChoicesStand(ScriptedEngine):
    """Follows all choices of a request by one matcher."""

    def add_request(self, request: GenerationRequest) -> None:
        super().add_request(request)
        first, *others = self._choices[-request.n :]
        for choice in others:
            choice.constrained, choice.pieces = first.constrained, first.pieces


class GoesOnBehindGrammars(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            more = "!" if item.finish_reason == "stop" and item.grammar_s else ""
            yield request_id, replace(item, text=item.text + more)


class HidesCuts(ScriptedEngine):
    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            if item.finish_reason and item.grammar_s:
                item = replace(item, finish_reason="stop")
            yield request_id, item


class DiesOfGrammars(ScriptedEngine):
    """Compiles a grammar when it is too late to refuse one."""

    stuck = False

    def compile(self, grammar: Grammar) -> float:
        return 0.0

    def add_request(self, request: GenerationRequest) -> None:
        try:
            super().add_request(request)
        except InvalidRequestError:
            if request.sampling.constraint is None:
                raise
            self.stuck = True

    def step(self) -> Steps:
        if self.stuck:
            raise RuntimeError("the grammar has no end")
        return super().step()


class IgnoresGrammarsItCannotCompile(ScriptedEngine):
    def compile(self, grammar: Grammar) -> float:
        try:
            return super().compile(grammar)
        except InvalidRequestError:
            return 0.0

    def add_request(self, request: GenerationRequest) -> None:
        try:
            super().add_request(request)
        except InvalidRequestError:
            super().add_request(replace(request, sampling=SamplingParams(max_tokens=9)))


class CompilesNothing(ScriptedEngine):
    def compile(self, grammar: Grammar) -> float:
        return Engine.compile(self, grammar)


class MindsCompany(ScriptedEngine):
    """Lets others say what a grammar asks of one."""

    def add_request(self, request: GenerationRequest) -> None:
        constrained = [c.request.sampling.constraint for c in self._choices if c.constrained]
        sampling = replace(request.sampling, constraint=next(iter(constrained), None))
        super().add_request(replace(request, sampling=sampling) if constrained else request)


class ForgetsToCount(ScriptedEngine):
    def stats(self) -> EngineStats:
        return replace(super().stats(), running=1)


class FindsMoreThanItSought(ScriptedEngine):
    def stats(self) -> EngineStats:
        return replace(super().stats(), cache_hits=10**6)


class Embeds(ScriptedEngine):
    """Makes embeddings, and says how long they are."""

    size = 3

    def __init__(self, script: Sequence[str], **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.info = replace(self.info, embedding_size=3)

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(sum(prompt))] * self.size for prompt in prompts]


class EmbedsWithAnotherSize(Embeds):
    size = 4


class EmbedsByCompany(Embeds):
    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(len(prompts))] * 3 for _ in prompts]


class ForgetsEmbeddings(Embeds):
    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return super().embed(prompts)[:1]


class Reranks(ScriptedEngine):
    """Scores documents by their length."""

    def __init__(self, script: Sequence[str], **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.info = replace(self.info, reranks=True)

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return self.tokenize(f"{query}\n{document}", add_special_tokens=True)

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [1 / len(pair) for pair in pairs]


class ReranksOnly(Reranks):
    def __init__(self, script: Sequence[str], **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.info = replace(self.info, generates=False)


class ReranksByCompany(Reranks):
    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [float(len(pairs))] * len(pairs)


class ReranksQueries(Reranks):
    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return self.tokenize(query, add_special_tokens=True)


class ReranksToNoNumber(Reranks):
    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [float("nan")] * len(pairs)


class ForgetsDocuments(Reranks):
    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return super().rerank(pairs)[:1]


class Classifies(ScriptedEngine):
    """Tells long texts from short ones."""

    def __init__(self, script: Sequence[str], **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.info = replace(self.info, labels=("long", "short"), generates=False)

    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(len(prompt)), 10.0] for prompt in prompts]


class ClassifiesByCompany(Classifies):
    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(len(prompts)), 10.0] for _ in prompts]


class ForgetsALabel(Classifies):
    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[1.0] for _ in prompts]


class ClassifiesToNoNumber(Classifies):
    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float("nan"), 1.0] for _ in prompts]


@pytest.mark.parametrize("kind", [Embeds, Reranks, ReranksOnly, Classifies])
async def test_engines_that_embed_or_rerank_keep_their_promise(kind: type[ScriptedEngine]) -> None:
    await check_backend(lambda: endless(kind), max_tokens=9)


def endless(kind: type[ScriptedEngine]) -> ScriptedEngine:
    return kind(lambda prompt, index: itertools.cycle(PIECES))


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (TwoFinishReasons, 1),
        (NoFinishReason, 1),
        (WrongIndex, 1),
        (LosesText, 2),
        (ShowsEndOfSequence, 2),
        (ShowsStopString, 2),
        (IgnoresAbort, 3),
        (AbortOfUnknownFails, 3),
        (PrefillsEveryChoice, 4),
        (RefusalKills, 5),
        (TakesTooLongPrompts, 5),
        (DropsParams, 7),
        (IgnoresMaxTokens, 7),
        (ClassifiesByCompany, 8),
        (ForgetsALabel, 8),
        (ClassifiesToNoNumber, 8),
        (EmbedsWithAnotherSize, 8),
        (EmbedsByCompany, 8),
        (ForgetsEmbeddings, 8),
        (ReranksByCompany, 8),
        (ReranksQueries, 8),
        (ReranksToNoNumber, 8),
        (ForgetsDocuments, 8),
        (IgnoresConstraints, 9),
        (SharesWhereChoicesStand, 9),
        (GoesOnBehindGrammars, 9),
        (HidesCuts, 9),
        (DiesOfGrammars, 9),
        (IgnoresGrammarsItCannotCompile, 9),
        (CompilesNothing, 9),
        (MindsCompany, 9),
        (ForgetsToCount, 10),
        (FindsMoreThanItSought, 10),
    ],
)
async def test_a_broken_engine_is_told_which_promise_it_breaks(
    broken: type[ScriptedEngine], promise: int
) -> None:
    def create() -> Engine:
        if broken is ShowsEndOfSequence:
            return broken(["Hi"])
        return broken(lambda prompt, index: itertools.cycle(PIECES))

    silent = broken in (NoFinishReason, TwoFinishReasons)  # each check waits as long as it may
    with pytest.raises(BrokenPromiseError, match=f"promise {promise}: "):
        await check_backend(create, max_tokens=9, timeout=0.1 if silent else 5)


class SilentAfterClose(EngineBackend):
    """Once closed it neither answers nor fails."""

    closed = False

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        if self.closed:
            await asyncio.Event().wait()
        async for delta in super().generate(request):
            yield delta

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def test_a_dead_backend_must_say_so() -> None:
    with pytest.raises(BrokenPromiseError, match="promise 6: check_death hangs"):
        await check_backend(lambda: SilentAfterClose(engine), timeout=0.5)


async def test_every_sampling_param_is_tried_or_disowned() -> None:
    """A param added to `SamplingParams` must get a check."""
    from enginebay.testing.params import _CHECKS

    tried = {name for names, _ in _CHECKS for name in names} | {"stop", "constraint"}
    not_tried = {
        "presence_penalty", "ignore_eos", "dry_base", "mirostat_eta", "adaptive_decay",
        "skip_special_tokens", "format_marks",
    }  # fmt: skip
    assert tried | not_tried == set(SamplingParams.__dataclass_fields__)
