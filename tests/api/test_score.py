"""`/v1/score` and `/v1/score/evaluation` over real HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pooling import CONTEXT, refusal, serving
from tests.support import Server

DOCUMENTS = ["b", "aaa", "ab"]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def post(server: Server, path: str, **body: Any) -> Any:
    return server.http.post(path, content=json.dumps(body))


def scores(response: Any) -> list[float]:
    assert response.status_code == 200, response.text
    return [item["score"] for item in response.json()["data"]]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_one_query_with_each_document(server: Server, path: str) -> None:
    # SCO-4
    response = server.http.post(
        path,
        json={"model": "ranks", "queries": "a", "documents": DOCUMENTS},
        headers={"X-Request-Id": "mine"},
    )
    answer = response.json()
    assert isinstance(answer.pop("created"), int)
    tokens = sum(len(f"[a|{document}|") for document in DOCUMENTS)
    assert answer == {
        "id": "score-mine",
        "object": "list",
        "model": "ranks",
        "data": [
            {"index": 0, "object": "score", "score": 0.0},
            {"index": 1, "object": "score", "score": 1.0},
            {"index": 2, "object": "score", "score": 0.5},
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


@pytest.mark.parametrize(
    ("queries", "documents"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_vllms_names(server: Server, queries: str, documents: str) -> None:
    body = {queries: [{"text": "a"}], documents: {"text": "ab"}}
    assert scores(post(server, "/v1/score", model="ranks", **body)) == [0.5]


@pytest.mark.parametrize("model", ["ranks", "raw", "embeds", "prompted"])
@pytest.mark.parametrize("cut", [{}, {"truncate": True}, {"max_tokens_per_doc": 2}])
def test_scores_are_those_of_reranking(server: Server, model: str, cut: dict[str, Any]) -> None:
    # SCO-4
    found = post(server, "/v1/score", model=model, queries=["a"], documents=DOCUMENTS, **cut)
    sorted_ones = post(server, "/v1/rerank", model=model, query="a", documents=DOCUMENTS, **cut)
    results = sorted(sorted_ones.json()["results"], key=lambda result: result["index"])
    assert scores(found) == [result["relevance_score"] for result in results]
    assert found.json()["usage"] == sorted_ones.json()["usage"]


@pytest.mark.parametrize("model", ["ranks", "embeds"])
def test_each_query_with_its_own_document(server: Server, model: str) -> None:
    response = post(server, "/v1/score", model=model, queries=["a", "b"], documents=["a", "a"])
    assert scores(response) == [1, 0]


def test_raw_scores_of_a_head_with_one_output(server: Server) -> None:
    body = {"queries": "a", "documents": DOCUMENTS}
    for asked in ({"raw_scores": True}, {"use_activation": False}):
        response = post(server, "/v1/score", model="raw", **body, **asked)
        assert scores(response) == [0, 100, 50]
        ignored = post(server, "/v1/score", model="ranks", **body, **asked)
        assert scores(ignored) == [0, 1, 0.5]
        assert ignored.headers["x-unsupported-params"] == next(iter(asked))
        cosines = post(server, "/v1/score", model="embeds", **body, **asked)
        assert cosines.headers["x-unsupported-params"] == next(iter(asked))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"queries": None}, "queries"),
        ({"queries": []}, "queries"),
        ({"queries": ["a", "b"]}, "queries"),
        ({"queries": ["a", ""]}, "queries[1]"),
        ({"queries": ["a", "a", 5]}, "queries[2]"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", None]}, "documents[1]"),
        ({"documents": ["a", "x" * 1000]}, "documents[1]"),
        ({"documents": ["", *[5] * 100_000]}, "documents"),
        ({"documents": ["a", "!"]}, "documents[1]"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"model": "says"}, "model"),
        ({"model": "three"}, "model"),
    ],
)
@pytest.mark.parametrize("model", ["ranks", "embeds"])
def test_wrong_bodies(server: Server, model: str, body: dict[str, Any], param: str) -> None:
    body = {"model": model, "queries": "a", "documents": DOCUMENTS, **body}
    assert refusal(post(server, "/v1/score", **body))["param"] == param


@pytest.mark.parametrize("name", ["documents", "text_2", "items", "data_2"])
@pytest.mark.parametrize("text", ["", 5, "x" * 1000, "!"])
def test_errors_have_the_names_that_were_sent(server: Server, name: str, text: Any) -> None:
    body = {"model": "ranks", "text_1": "a", name: ["a", text]}
    assert refusal(post(server, "/v1/score", **body))["param"] == f"{name}[1]"


@pytest.mark.parametrize("missing", ["queries", "documents"])
def test_what_must_be_sent(server: Server, missing: str) -> None:
    body = {"model": "ranks", "queries": "a", "documents": DOCUMENTS}
    del body[missing]
    assert refusal(post(server, "/v1/score", **body))["param"] == missing


@pytest.mark.parametrize("path", ["/v1/score/evaluation", "/score/evaluation"])
def test_a_reward_model_scores_texts(server: Server, path: str) -> None:
    # SCO-1, MEDIA-45, LF-17, LF-18, LF-19, LF-22: one score a message, nothing added to texts.
    response = server.http.post(
        path,
        json={"model": "rewards", "messages": ["abc", "a", "x" * 1000]},
        headers={"X-Request-Id": "mine"},
    )
    assert response.json() == {
        "id": "scoreval-mine",
        "object": "score.evaluation",
        "model": "rewards",
        "scores": [3, 1, CONTEXT],
    }


@pytest.mark.parametrize(("most", "read"), [(2, 2), (8, 8), (1000, CONTEXT), (None, CONTEXT)])
def test_texts_are_cut_at_their_end(server: Server, most: int | None, read: int) -> None:
    # LF-18
    text = "a" * 8 + "\1" + "a" * 1000
    answer = post(
        server, "/v1/score/evaluation", model="rewards", messages=[text], max_length=most
    ).json()
    assert answer["scores"] == [read + 1000 * (read > 8)]


def test_rerankers_and_classifiers_with_one_label_score_too(server: Server) -> None:
    answer = post(server, "/v1/score/evaluation", model="raw", messages=["[a\2aab|"]).json()
    assert answer["scores"] == pytest.approx([200 / 3])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "a"}, "messages"),
        ({"messages": ["a", 5]}, "messages[1]"),
        ({"messages": ["a", {"role": "user", "content": "a"}]}, "messages[1]"),
        ({"messages": ["a", ""]}, "messages[1]"),
        ({"messages": ["a", "!"]}, "messages[1]"),
        ({"messages": [5] * 100_000}, "messages"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 1.5}, "max_length"),
        ({"max_length": 2**31}, "max_length"),
    ],
)
def test_wrong_messages(server: Server, body: dict[str, Any], param: str) -> None:
    # SCO-3
    body = {"model": "rewards", "messages": ["a"], **body}
    assert refusal(post(server, "/v1/score/evaluation", **body))["param"] == param


@pytest.mark.parametrize(
    ("model", "routes"),
    [
        ("says", "/v1/chat/completions, /v1/completions"),
        ("embeds", "/v1/embeddings, /v1/rerank, /v1/score"),
        ("three", "/v1/classify"),
        ("ranks", "/v1/rerank, /v1/score"),
    ],
)
def test_other_models_score_nothing(server: Server, model: str, routes: str) -> None:
    # SCO-3, LF-23, MEDIA-45
    error = refusal(post(server, "/v1/score/evaluation", model=model, messages=["a"]), 405)
    assert (error["param"], error["code"]) == ("model", "wrong_model")
    assert error["message"].endswith(f"its routes: {routes}")


@pytest.mark.parametrize("model", ["rewards", "three", "raw"])
def test_reward_models_and_classifiers_do_not_chat(server: Server, model: str) -> None:
    # SCO-3, LF-23, MEDIA-45
    for path, body in (("chat/completions", CHAT), ("completions", {"prompt": "hi"})):
        error = refusal(post(server, f"/v1/{path}", model=model, **body), 405)
        assert (error["param"], error["code"]) == ("model", "wrong_model")
        assert "does not generate text: use /v1/" in error["message"]
        assert ("/v1/score/evaluation" in error["message"]) == (model != "three")


def test_without_a_name_it_is_a_model_for_it(server: Server) -> None:
    answer = post(server, "/v1/score/evaluation", messages=["a"]).json()
    assert answer["model"] == "rewards"
    scored = post(server, "/v1/score", queries="a", documents="ab").json()
    assert scored["model"] == "ranks"
