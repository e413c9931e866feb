"""`/v2/rerank` over real HTTP, with Cohere's client and without."""

import json
from collections.abc import Iterator
from typing import Any

import cohere
import pytest
from cohere.core.api_error import ApiError

from tests.pooling import CONTEXT, refusal, serving
from tests.support import Server

DOCUMENTS = ["b", "aaa", "ab"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[cohere.ClientV2]:
    with cohere.ClientV2(api_key="none", base_url=server.url) as client:
        yield client


def test_coheres_client(client: cohere.ClientV2) -> None:
    # SCO-5
    answer = client.rerank(model="ranks", query="a", documents=DOCUMENTS)
    assert answer.id
    assert answer.id.startswith("rerank-")
    found = [(result.index, result.relevance_score) for result in answer.results]
    assert found == [(1, 1.0), (2, 0.5), (0, 0.0)]
    assert answer.meta
    assert answer.meta.tokens
    assert answer.meta.tokens.input_tokens == sum(len(f"[a|{text}|") for text in DOCUMENTS)
    assert answer.meta.api_version
    assert answer.meta.api_version.version == "2"


def test_its_parameters(client: cohere.ClientV2) -> None:
    best = client.rerank(model="ranks", query="a", documents=DOCUMENTS, top_n=1, priority=5)
    assert [result.index for result in best.results] == [1]
    cut = client.rerank(model="ranks", query="a", documents=["ab", "ba"], max_tokens_per_doc=1)
    assert [result.relevance_score for result in cut.results] == [1, 0]


@pytest.mark.parametrize("model", ["ranks", "embeds"])
def test_documents_that_are_too_long_are_cut(client: cohere.ClientV2, model: str) -> None:
    documents = ["b" * 5000, "a" * 5000]
    answer = client.rerank(model=model, query="a", documents=documents)
    assert [result.index for result in answer.results] == [1, 0]
    assert answer.meta
    assert answer.meta.tokens
    tokens = answer.meta.tokens.input_tokens
    assert tokens == 2 * CONTEXT + (len("[a|") if model == "embeds" else 0)


def test_its_errors(client: cohere.ClientV2) -> None:
    with pytest.raises(ApiError) as caught:
        client.rerank(model="says", query="a", documents=DOCUMENTS)
    assert caught.value.status_code == 400
    assert "does not support reranking" in caught.value.body["error"]["message"]


def test_the_answer(server: Server) -> None:
    body = {"model": "ranks", "query": "a", "documents": DOCUMENTS, "top_n": 2}
    headers = {"X-Request-Id": "mine"}
    assert server.http.post("/v2/rerank", json=body, headers=headers).json() == {
        "id": "rerank-mine",
        "results": [{"index": 1, "relevance_score": 1}, {"index": 2, "relevance_score": 0.5}],
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": 18}},
    }
    assert server.http.post("/v1/v2/rerank", json=body).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": "x" * 1000}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", "!"]}, "documents[1]"),
        ({"documents": ["", *[5] * 100_000]}, "documents"),
        ({"top_n": 0}, "top_n"),
    ],
)
def test_wrong_bodies(server: Server, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": "ranks", "query": "a", "documents": DOCUMENTS, **body})
    assert refusal(server.http.post("/v2/rerank", content=content))["param"] == param
