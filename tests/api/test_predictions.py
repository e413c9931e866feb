"""What the client expects of an answer is drafted, and changes nothing. ENG-7."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.plugins import Plugins
from tests.support import DEMO_MODEL, Server, scripted_config, serve

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = {"device": "cpu", "threads": 1}
    config = scripted_config(backend="hf", path=str(DEMO_MODEL), options=options)
    with serve(config, Plugins()) as server:
        yield server


def answered(server: Server, **fields: Any) -> dict[str, Any]:
    response = server.http.post(CHAT, json={**BODY, **fields})
    assert response.status_code == 200, response.text
    assert "x-unsupported-params" not in response.headers
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_prediction_changes_no_text_and_is_counted(server: Server) -> None:
    plain = answered(server)
    text = text_of(plain)
    assert "accepted_prediction_tokens" not in plain["usage"]["completion_tokens_details"]
    half = len(text) // 2
    parts = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]
    for content in (text, parts, text[:half] + " But no! " + text[half:], "Something else."):
        drafted = answered(server, prediction={"type": "content", "content": content})
        assert text_of(drafted) == text
        usage = drafted["usage"]
        assert usage["completion_tokens"] == plain["usage"]["completion_tokens"]
        if content == text:
            details = usage["completion_tokens_details"]
            assert details["accepted_prediction_tokens"] > 0
            assert details["rejected_prediction_tokens"] >= 0
            timings = answered(
                server, prediction={"type": "content", "content": text}, timings_per_token=True
            )["timings"]
            assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
    metrics = server.http.get("/metrics").text
    assert "spec_decode_num_accepted_tokens_total" in metrics


def test_streams_and_several_choices_have_the_same_texts(server: Server) -> None:
    sampled = {"temperature": 0.7, "seed": 3, "n": 3}
    plain = answered(server, **sampled)
    texts = [choice["message"]["content"] for choice in plain["choices"]]
    prediction = {"type": "content", "content": texts[1]}
    drafted = answered(server, **sampled, prediction=prediction)
    assert [choice["message"]["content"] for choice in drafted["choices"]] == texts


ODD: dict[str, Any] = {
    "empty": "",
    "no parts": [],
    "an empty part": [{"type": "text", "text": ""}],
    "spaces": " " * 3000,
    "NUL": "a\0b",
    "special tokens": "<|im_end|>" * 50 + "</s><|endoftext|>",
    "half a cluster": "é\u0301\u200d",
    "more than there is room for": "Once upon a time " * 20_000,
    "one word without end": "x" * 3_000_000,
    "many parts": [{"type": "text", "text": "a"}] * 5000,
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_odd_predictions_change_no_text(server: Server, content: object) -> None:
    plain = answered(server)
    odd = answered(server, prediction={"type": "content", "content": content})
    assert text_of(odd) == text_of(plain)


def test_no_prediction_is_null(server: Server) -> None:
    assert text_of(answered(server, prediction=None)) == text_of(answered(server))


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "text", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image", "text": "x"}]}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": ["x"]}, "prediction.content"),
        ({"type": "content", "content": [{"type": "text", "text": 5}]}, "prediction.content"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content"),
        ({"type": "content", "content": {"text": "x"}}, "prediction.content"),
        ({"content": "x"}, "prediction.type"),
        ([], "prediction"),
        (True, "prediction"),
        ("x", "prediction"),
    ],
)
def test_what_is_no_prediction(server: Server, prediction: object, param: str) -> None:
    body = json.dumps({**BODY, "prediction": prediction})  # escapes what is no Unicode
    headers = {"content-type": "application/json"}
    response = server.http.post(CHAT, content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
