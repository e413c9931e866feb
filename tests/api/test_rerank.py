"""`/v1/rerank` over real HTTP, with a reranker and with an embedding model."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from enginebay.testing import ScriptedEngine
from tests.api.test_queue import asking, error_of
from tests.held import holding
from tests.support import Server, engine_backend, plugins_with, scripted, serve

CONTEXT = 16
DOCUMENTS = ["b", "aaa", "ab"]


class RerankEngine(ScriptedEngine):
    """Scores a document by how many of its letters are the query's first, from -1 to 1."""

    def __init__(self) -> None:
        super().__init__(["never said"], context_length=CONTEXT)
        self.info = replace(self.info, reranks=True, generates=False)

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return [*map(ord, query), 0, *map(ord, document)]

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        if any(pair[-1] == ord("!") for pair in pairs):
            raise RuntimeError("no memory")
        return [2 * _part(list(pair)) - 1 for pair in pairs]


def _part(pair: list[int]) -> float:
    document = pair[pair.index(0) + 1 :]
    return document.count(pair[0]) / len(document)


class EmbeddingEngine(ScriptedEngine):
    """Embeds a text as how many `a` and `b` it has, so that `c` has no direction."""

    def __init__(self) -> None:
        super().__init__(["ok"], context_length=CONTEXT)
        self.info = replace(self.info, embedding_size=2, adapters=("pirate",))

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(prompt.count(97)), float(prompt.count(98))] for prompt in prompts]


class WaitingEngine(RerankEngine):
    """Says when it begins to rerank, and waits until it may go on."""

    begun = threading.Event()
    may_go_on = threading.Event()
    calls = 0

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        type(self).calls += 1
        self.begun.set()
        assert self.may_go_on.wait(60)
        return super().rerank(pairs)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    backends = {
        "ranks": engine_backend(RerankEngine),
        "embeds": engine_backend(EmbeddingEngine),
        "says": scripted(["ok"]),
        "waits": engine_backend(WaitingEngine),
    }
    models = [{"name": name, "backend": name, "path": "."} for name in backends]
    with serve(Config.model_validate({"models": models}), plugins_with(**backends)) as running:
        yield running


def rerank(server: Server, query: Any = "a", documents: Any = DOCUMENTS, **more: Any) -> Any:
    body = {"model": "ranks", "query": query, "documents": documents, **more}
    return server.http.post("/v1/rerank", json=body)


def refusal(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_a_reranker_reads_pairs(server: Server) -> None:
    response = server.http.post(
        "/v1/rerank",
        json={"model": "ranks", "query": "a", "documents": DOCUMENTS},
        headers={"X-Request-Id": "mine"},
    )
    assert response.headers["x-request-id"] == "mine"
    tokens = sum(len("a") + 1 + len(document) for document in DOCUMENTS)
    assert response.json() == {
        "id": "rerank-mine",
        "object": "list",
        "model": "ranks",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": [
            {"index": 1, "relevance_score": 1.0, "document": {"text": "aaa"}},
            {"index": 2, "relevance_score": 0.0, "document": {"text": "ab"}},
            {"index": 0, "relevance_score": -1.0, "document": {"text": "b"}},
        ],
    }


def test_the_score_of_embeddings_is_their_cosine(server: Server) -> None:
    documents = ["b", "aaa", "ab", "c"]
    answer = rerank(server, "a", documents, model="embeds").json()
    scores = {item["index"]: item["relevance_score"] for item in answer["results"]}
    assert list(scores) == [1, 2, 0, 3]
    assert scores == pytest.approx({1: 1.0, 2: 0.5**0.5, 0: 0.0, 3: 0.0})
    assert answer["usage"]["prompt_tokens"] == len("a") + len("".join(documents))
    nowhere = rerank(server, "c", documents, model="embeds").json()["results"]
    assert {item["relevance_score"] for item in nowhere} == {0.0}


@pytest.mark.parametrize("route", ["/v1/rerank", "/rerank"])
def test_what_open_webui_sends(server: Server, route: str) -> None:
    # Acceptance 2.3: its ExternalReranker, which sorts by index what it gets.
    payload = {"model": "ranks", "query": "a", "documents": DOCUMENTS, "top_n": len(DOCUMENTS)}
    data = server.http.post(route, json=payload).json()
    results = sorted(data["results"], key=lambda result: result["index"])
    assert [result["relevance_score"] for result in results] == [-1.0, 1.0, 0.0]


def test_documents_as_texts_and_objects(server: Server) -> None:
    answer = rerank(server, documents=["b", {"text": "a"}], return_documents=False).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": 1.0},
        {"index": 0, "relevance_score": -1.0},
    ]


@pytest.mark.parametrize(("top_n", "found"), [(1, 1), (3, 3), (100, 3), (None, 3)])
def test_top_n(server: Server, top_n: int | None, found: int) -> None:
    answer = rerank(server, top_n=top_n).json()
    assert [item["index"] for item in answer["results"]] == [1, 2, 0][:found]
    assert answer["usage"]["prompt_tokens"] == 12


@pytest.mark.parametrize("model", ["ranks", "embeds"])
def test_many_documents_and_equal_ones_stay_in_order(server: Server, model: str) -> None:
    documents = ["b", "a"] * 1024
    answer = rerank(server, documents=documents, model=model, return_documents=False).json()
    found = [item["index"] for item in answer["results"]]
    assert found == [*range(1, 2048, 2), *range(0, 2048, 2)]


@pytest.mark.parametrize("model", ["ranks", "embeds"])
def test_what_does_not_fit_is_named(server: Server, model: str) -> None:
    longest = "a" * (CONTEXT - 2 if model == "ranks" else CONTEXT)
    assert rerank(server, "a", [longest], model=model).status_code == 200
    for query, documents, place in (
        ("a", ["b", longest + "a"], "documents[1]"),
        ("a", ["b", "a" * 1000], "documents[1]"),
        ("a" * 1000, ["b"], "query"),
    ):
        error = refusal(rerank(server, query, documents, model=model))
        assert (error["code"], error["param"]) == ("context_length_exceeded", place)


@pytest.mark.parametrize("model", ["ranks", "embeds"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": {"text": "a"}}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": {"text": "a"}}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", {"text": ""}]}, "documents[1]"),
        ({"documents": ["a", None]}, "documents[1]"),
        ({"documents": ["a", 5]}, "documents[1]"),
        ({"documents": ["a", {"text": 5}]}, "documents[1]"),
        ({"documents": ["a", {}]}, "documents[1]"),
        ({"documents": ["a", {"text": "a", "image": "b"}]}, "documents[1]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"top_n": "all"}, "top_n"),
        ({"return_documents": "some"}, "return_documents"),
        ({"model": 5}, "model"),
    ],
)
def test_wrong_bodies(server: Server, model: str, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": model, "query": "a", "documents": DOCUMENTS, **body})
    error = refusal(server.http.post("/v1/rerank", content=content))
    assert error["param"] == param
    assert rerank(server, model=model).status_code == 200


@pytest.mark.parametrize("missing", ["query", "documents"])
def test_what_must_be_sent(server: Server, missing: str) -> None:
    body = {"model": "ranks", "query": "a", "documents": DOCUMENTS}
    del body[missing]
    assert refusal(server.http.post("/v1/rerank", json=body))["param"] == missing


def test_models_that_cannot(server: Server) -> None:
    for model in ("says", "pirate"):
        error = refusal(rerank(server, model=model))
        assert error["param"] == "model"
        assert "loaded models that can: 'ranks', 'embeds', 'waits'" in error["message"]
    assert refusal(rerank(server, model="nobody"), 404)["code"] == "model_not_found"


def test_a_key_hears_of_its_models_only() -> None:
    backends = {"ranks": engine_backend(RerankEngine), "says": scripted(["ok"])}
    models = [{"name": name, "backend": name, "path": "."} for name in backends]
    keys = KeyStore(Path("no such file"), [Key("ann", digest_of("ann"), models=("says",))])
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(**backends), keys=keys) as server:
        body = {"model": "says", "query": "a", "documents": ["b"]}
        answer = server.http.post("/v1/rerank", json=body, headers={"x-api-key": "ann"})
    assert refusal(answer)["message"].endswith("choose a reranker or an embedding model")


def test_a_reranker_does_nothing_else(server: Server) -> None:
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("completions", {"prompt": "hi"}),
    ):
        error = refusal(server.http.post(f"/v1/{path}", json={"model": "ranks", **body}))
        assert (error["param"], "use /v1/rerank" in error["message"]) == ("model", True)
    error = refusal(server.http.post("/v1/embeddings", json={"model": "ranks", "input": "a"}))
    assert "does not support embeddings" in error["message"]


def test_what_a_model_is_for_can_be_seen(server: Server) -> None:
    for model, can in (("ranks", "reranking"), ("embeds", "embeddings")):
        report = server.http.get(f"/v1/models/{model}/inspect").json()
        assert can in report["capabilities"]
    listed = server.http.get("/v1/model/embedding/list").json()["data"]
    assert [card["id"] for card in listed] == ["embeds"]


def test_fields_that_mean_nothing_are_named(server: Server) -> None:
    response = rerank(server, max_chunks_per_doc=10, rank_fields=None, user="me")
    assert response.headers["x-unsupported-params"] == "max_chunks_per_doc"


def test_a_failure_of_the_engine_fails_one_call(server: Server) -> None:
    error = refusal(rerank(server, documents=["a", "!"]), 500)
    assert error["message"] == "the engine failed to rerank: RuntimeError: no memory"
    assert rerank(server).status_code == 200


def test_nothing_more_is_computed_for_a_client_that_left(server: Server) -> None:
    body = json.dumps({"query": "a", "documents": ["a"] * 1000, "model": "waits"})
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/rerank HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
        client.sendall(f"{head}\r\n\r\n{body}".encode())
        assert WaitingEngine.begun.wait(60)
    WaitingEngine.may_go_on.set()
    assert rerank(server, model="waits").status_code == 200
    assert WaitingEngine.calls < 1000 / 64


def test_it_can_be_cancelled_by_the_id_of_its_answer() -> None:
    with holding() as at, asking(at) as ask:
        answer = ask(None, path="rerank", query="q", documents=["d"])
        at.begun("q")
        [running] = at.server.http.get("/v1/requests").json()["data"]
        assert running["n"] == 1
        assert running["id"] == f"rerank-{at.requests[0].id}"
        cancelled = at.server.http.post(f"/v1/requests/{running['id']}/cancel")
        assert cancelled.status_code == 200
        assert error_of(answer) == (499, "request_cancelled")
        at.nothing_is_left()
