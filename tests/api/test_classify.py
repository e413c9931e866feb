"""`/v1/classify` over real HTTP."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pooling import CONTEXT, refusal, serving
from tests.support import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def classify(server: Server, input: Any, model: str | None = "three", **more: Any) -> Any:
    body = {"model": model, "input": input, **more}
    return server.http.post("/v1/classify", content=json.dumps(body))


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_the_likeliest_label(server: Server, path: str) -> None:
    # MEDIA-44
    response = server.http.post(
        path,
        json={"model": "three", "input": ["aab", "cc"]},
        headers={"X-Request-Id": "mine"},
    )
    answer = response.json()
    assert isinstance(answer.pop("created"), int)
    data = answer.pop("data")
    assert answer == {
        "id": "classify-mine",
        "object": "list",
        "model": "three",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    assert [(item["index"], item["label"], item["num_classes"]) for item in data] == [
        (0, "good", 3),
        (1, "neither", 3),
    ]
    powers = [math.exp(2), math.exp(1), math.exp(0)]
    assert data[0]["probs"] == pytest.approx([power / sum(powers) for power in powers])


def test_probabilities_add_up_unless_several_labels_may_apply(server: Server) -> None:
    # MEDIA-44
    for item in classify(server, ["a", "bbb", "x"]).json()["data"]:
        assert sum(item["probs"]) == pytest.approx(1)
    [several] = classify(server, "aabb", "many").json()["data"]
    assert several["probs"] == pytest.approx([1 / (1 + math.exp(-2))] * 2)
    [single] = classify(server, "x" * 7, "rewards", add_special_tokens=False).json()["data"]
    assert single["probs"] == pytest.approx([1 / (1 + math.exp(-7))])


def test_probabilities_of_extreme_outputs(server: Server) -> None:
    for input in ("x", ["x", "xx"]):  # 1000 and more
        for item in classify(server, input, "rewards").json()["data"]:
            assert item["probs"] == [1]


def test_raw_outputs(server: Server) -> None:
    [item] = classify(server, "aab", use_activation=False).json()["data"]
    assert (item["label"], item["probs"]) == ("good", [2, 1, 0])


@pytest.mark.parametrize("input", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_texts_and_token_ids(server: Server, input: Any) -> None:
    answer = classify(server, input, add_special_tokens=False).json()
    assert answer["data"][0]["probs"][0] == answer["data"][0]["probs"][1]
    assert answer["usage"]["prompt_tokens"] == 2


def test_many_stay_in_order(server: Server) -> None:
    data = classify(server, ["a", "b", "c"] * 600).json()["data"]
    assert [item["label"] for item in data] == ["good", "bad", "neither"] * 600
    assert [item["index"] for item in data] == list(range(1800))


def test_texts_that_are_cut(server: Server) -> None:
    text = "b" * (CONTEXT - 2) + "a" * 1000
    error = refusal(classify(server, ["a", text]))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert classify(server, text, truncate=True).json()["usage"]["prompt_tokens"] == CONTEXT
    cut = {"truncate_prompt_tokens": 5, "use_activation": False}
    assert classify(server, text, **cut).json()["data"][0]["probs"] == [0, 3, 0]
    left = classify(server, text, truncation_side="left", **cut).json()["data"][0]
    assert left["probs"] == [3, 0, 0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [[97], [2**40]]}, "input[1]"),
        ({"input": ["a", "!"]}, "input[1]"),
        ({"input": ["", *[5] * 100_000]}, "input"),
        ({"use_activation": "some"}, "use_activation"),
        ({"model": 5}, "model"),
    ],
)
def test_wrong_bodies(server: Server, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": "three", "input": "a", **body})
    assert refusal(server.http.post("/v1/classify", content=content))["param"] == param


@pytest.mark.parametrize("model", ["says", "embeds", "ranks"])
def test_models_that_have_no_labels(server: Server, model: str) -> None:
    error = refusal(classify(server, "a", model))
    able = "loaded models that can: 'raw', 'three', 'many', 'rewards'"
    assert (error["param"], error["message"].endswith(able)) == ("model", True)


def test_without_a_name_it_is_a_model_that_can(server: Server) -> None:
    assert classify(server, "a", None).json()["model"] == "three"


def test_fields_that_mean_nothing_are_named(server: Server) -> None:
    response = classify(server, "a", padding="max_length", user="me")
    assert response.headers["x-unsupported-params"] == "padding"
    report = server.http.get("/v1/models/three/inspect").json()
    assert report["labels"] == ["good", "bad", "neither"]
    assert "classification" in report["capabilities"]
