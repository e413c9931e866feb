"""Embeddings, scores and labels from Python values, without HTTP. LF-21"""

from collections.abc import AsyncIterator

import pytest

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.config.schema import Config
from enginebay.contract.errors import (
    InvalidRequestError,
    UnsupportedParameterError,
    WrongModelError,
)
from enginebay.serving.classify import classify, score_evaluation
from enginebay.serving.embed import embed
from enginebay.serving.rerank import rerank, score
from enginebay.serving.schemas.classify_bodies import ClassifyRequest, ScoreEvaluationRequest
from enginebay.serving.schemas.embedding_bodies import EmbeddingRequest
from enginebay.serving.schemas.rerank_bodies import RerankRequest, ScoreRequest
from enginebay.serving.serving import Serving
from tests.pooling import BACKENDS
from tests.support import plugins_with


async def opened(*names: str, **server: object) -> Serving:
    models = [{"name": name, "backend": name, "path": "."} for name in names]
    config = Config.model_validate({"models": models, "server": server})
    serving = Serving(config, plugins_with(**BACKENDS), lambda *_: None)
    await serving.models.load_at_start()
    return serving


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    serving = await opened("says", "embeds", "ranks", "three", "rewards")
    yield serving
    await serving.close()


@pytest.fixture
async def running() -> AsyncIterator[RunningRequest]:
    running = RunningRequest("test")
    yield running
    await running.release()


async def test_embeddings(serving: Serving, running: RunningRequest) -> None:
    body = read_body(EmbeddingRequest, {"input": ["aa", "ab"], "no_such": 1})
    answer = await embed(serving.pooling, body, running)
    assert answer.ignored == ["no_such"]
    assert answer.body.data[0].embedding == [1, 0, 0, 0]
    assert serving.counts.of("embeds").prompt_tokens == 8
    assert (running.model, running.choices) == ("embeds", 2)


async def test_scores_and_labels(serving: Serving, running: RunningRequest) -> None:
    pooling = serving.pooling
    sorted_ones = RerankRequest(query="a", documents=["b", "a"])
    assert [each.index for each in (await rerank(pooling, sorted_ones, running)).body.results] == [
        1,
        0,
    ]
    pairs = read_body(ScoreRequest, {"queries": "a", "documents": ["b", "a"]})
    assert [each.score for each in (await score(pooling, pairs, running)).body.data] == [0, 1]
    texts = ClassifyRequest(input="bb")
    assert (await classify(pooling, texts, running)).body.data[0].label == "bad"
    rewards = ScoreEvaluationRequest(messages=["abc"])
    assert (await score_evaluation(pooling, rewards, running)).body.scores == [3]


async def test_errors(serving: Serving, running: RunningRequest) -> None:
    with pytest.raises(InvalidRequestError, match="does not support embeddings"):
        await embed(serving.pooling, EmbeddingRequest(input="a", model="says"), running)
    body = ScoreEvaluationRequest(messages=["a"], model="says")
    with pytest.raises(WrongModelError):
        await score_evaluation(serving.pooling, body, running)


async def test_strict_servers_refuse_what_has_no_effect(running: RunningRequest) -> None:
    serving = await opened("embeds", strict_params=True)
    body = read_body(EmbeddingRequest, {"input": "a", "input_type": "query"})
    with pytest.raises(UnsupportedParameterError, match="input_type"):
        await embed(serving.pooling, body, running)
    await running.release()
    await serving.close()
