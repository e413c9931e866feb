"""What clients of Text Embeddings Inference send, which name no model, and what they read."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pooling import CONTEXT, refusal, serving
from tests.support import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def post(server: Server, path: str, **body: Any) -> Any:
    return server.http.post(path, content=json.dumps(body))


@pytest.mark.wing("tei")
@pytest.mark.parametrize("path", ["/embed", "/v1/embed"])
def test_embeddings(server: Server, path: str) -> None:
    # SCO-5: what LangChain's and Haystack's clients send.
    body = {"inputs": ["aaaa", "bc"], "normalize": True, "truncate": True}
    response = post(server, path, **body)
    assert response.json() == [[1, 0, 0, 0], pytest.approx([0, 0.5**0.5, 0.5**0.5, 0])]
    assert "x-unsupported-params" not in response.headers
    assert response.headers["x-request-id"]
    assert post(server, path, inputs="aaaa", normalize=False).json() == [[4, 0, 0, 0]]
    assert post(server, path, inputs=[97, 98], normalize=False).json() == [[1, 1, 0, 0]]


@pytest.mark.wing("tei")
def test_embeddings_are_those_of_openais_route(server: Server) -> None:
    texts = ["aab", "bcd", "x", "a" * 5000]
    for model, more in (
        ("embeds", {"truncate": True}),
        ("nested", {"truncate": True, "dimensions": 2}),
        ("prompted", {"truncate": True, "prompt_name": "query"}),
        ("prompted", {"truncate": True, "truncation_direction": "Left"}),
    ):
        ours = post(server, "/v1/embeddings", model=model, input=texts, **more).json()["data"]
        theirs = post(server, "/embed", model=model, inputs=texts, **more).json()
        assert theirs == [item["embedding"] for item in ours]


@pytest.mark.wing("tei")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["a", ""]}, "inputs[1]"),
        ({"inputs": ["a", 5]}, "inputs"),
        ({"inputs": ["a", "x" * 1000]}, "inputs[1]"),
        ({"inputs": ["", *[5] * 100_000]}, "inputs"),
        ({"inputs": ["a", "!"]}, "inputs[1]"),
        ({"inputs": "a", "dimensions": 3}, "dimensions"),
        ({"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        ({"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        ({"inputs": "a", "model": "says"}, "model"),
    ],
)
def test_wrong_bodies(server: Server, body: dict[str, Any], param: str) -> None:
    error = refusal(post(server, "/embed", **body))
    assert error["param"] == param


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_reranking(server: Server, path: str) -> None:
    # SCO-5
    texts = ["b", "aaa", "ab"]
    body = {"query": "a", "texts": texts, "raw_scores": False, "model": "ranks"}
    ranks = [{"index": 1, "score": 1}, {"index": 2, "score": 0.5}, {"index": 0, "score": 0}]
    assert post(server, path, **body).json() == ranks
    with_texts = post(server, path, **body, return_text=True).json()
    assert with_texts == [{**rank, "text": texts[int(rank["index"])]} for rank in ranks]
    raw = post(server, path, **{**body, "model": "raw", "raw_scores": True}).json()
    assert [rank["score"] for rank in raw] == [100, 50, 0]
    other = post(server, path, **body, return_documents=True)
    assert other.headers["x-unsupported-params"] == "return_documents"
    body["documents"] = body.pop("texts")
    other = post(server, path, **body, return_text=True)
    assert other.headers["x-unsupported-params"] == "return_text"


def test_texts_that_are_cut(server: Server) -> None:
    texts = ["ab" + "b" * 5000, "a" * 5000]
    body = {"model": "ranks", "query": "a", "texts": texts}
    error = refusal(post(server, "/rerank", **body))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "texts[0]")
    room = CONTEXT - len("[a||")
    cut = post(server, "/rerank", **body, truncate=True).json()
    assert [rank["score"] for rank in cut] == [1, 1 / room]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"texts": []}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": ["a", 5]}, "texts[1]"),
        ({"texts": ["a", "!"]}, "texts[1]"),
        ({"texts": [5] * 100_000}, "texts"),
        ({"texts": ["a"], "documents": ["a"]}, "texts"),
        ({"texts": ["a"], "return_text": "some"}, "return_text"),
    ],
)
def test_wrong_texts(server: Server, body: dict[str, Any], param: str) -> None:
    error = refusal(post(server, "/rerank", model="ranks", query="a", **body))
    assert error["param"] == param


@pytest.mark.wing("tei")
@pytest.mark.parametrize("path", ["/info", "/v1/info"])
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("embeds", {"embedding": {}}),
        ("ranks", {"reranker": {"id2label": {}, "label2id": {}}}),
        ("raw", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        ("many", {"classifier": {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}}),
    ],
)
def test_what_a_model_is(server: Server, path: str, model: str, kind: dict[str, Any]) -> None:
    assert server.http.get(path, params={"model": model}).json() == {
        "model_id": model,
        "served_model_name": model,
        "model_type": kind,
        "max_input_length": CONTEXT,
        "max_client_batch_size": 2048,
        "auto_truncate": False,
        "version": server.app.version,
    }


@pytest.mark.wing("tei")
def test_the_model_that_answers_where_none_is_named(server: Server) -> None:
    assert server.http.get("/info").json()["model_id"] == "embeds"
    assert refusal(server.http.get("/info?model=says"))["param"] == "model"
    assert refusal(server.http.get("/info?model=nobody"), 404)["code"] == "model_not_found"
    with serving("says") as only:
        assert "/v1/chat/completions" in refusal(only.http.get("/info"))["message"]
