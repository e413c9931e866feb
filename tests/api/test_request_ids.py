"""Whose id a request has."""

import threading
from typing import Any

import pytest

from tests.conftest import ServeScripted

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def test_a_new_one(serve_scripted: ServeScripted) -> None:
    # MLC-8 MLC-9 WEB-1
    server = serve_scripted(["ok"])
    answers = [server.http.post(CHAT, json={**BODY, "user": "someone"}) for _ in range(2)]
    ids = [answer.json()["id"] for answer in answers]
    assert len(set(ids)) == 2
    for answer, id in zip(answers, ids, strict=True):
        assert id == f"chatcmpl-{answer.headers['x-request-id']}"
        assert "someone" not in id


@pytest.mark.parametrize("sent", ["x" * 129, "a b", "é", ""])
def test_a_header_that_is_no_id(serve_scripted: ServeScripted, sent: str) -> None:
    server = serve_scripted(["ok"])
    headers = {"X-Request-Id": sent.encode()}
    answer = server.http.post(CHAT, json=BODY, headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 200
    assert len(answer.headers["x-request-id"]) == 32


def test_user_where_the_config_says_so(serve_scripted: ServeScripted) -> None:
    # MLC-7
    server = serve_scripted(["ok"], server={"request_id_from": "user"})
    headers = {"X-Request-Id": "header"}
    ids = [
        server.http.post(CHAT, json={**BODY, **body}, headers=headers).json()["id"]
        for body in ({"user": "node-7"}, {}, {"user": "no id"})
    ]
    assert ids == ["chatcmpl-node-7", "chatcmpl-header", "chatcmpl-header"]


def test_the_field_where_the_config_says_so(serve_scripted: ServeScripted) -> None:
    # VLLM-27
    body = {**BODY, "request_id": "mine"}
    server = serve_scripted(["ok"], server={"request_id_from": "request_id"})
    answer = server.http.post(CHAT, json=body)
    assert answer.json()["id"] == "chatcmpl-mine"
    assert "x-unsupported-params" not in answer.headers
    sent = {"X-Request-Id": "header"}
    assert server.http.post(CHAT, json=body, headers=sent).json()["id"] == "chatcmpl-mine"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", f"{CHAT}/explain"])
def test_the_field_where_no_header_is_sent(serve_scripted: ServeScripted, path: str) -> None:
    # FIX-15, VLLM-27
    strict = serve_scripted(["ok"], server={"strict_params": True})
    other = serve_scripted(["ok"])
    start = {"prompt": "x"} if path == "/v1/completions" else BODY
    body = {**start, "request_id": "mine"}
    answer = strict.http.post(path, json=body)
    assert answer.status_code == 200
    assert answer.json().get("id", "-mine").endswith("-mine")  # explained answers have none
    for id, header in (("mine", "header"), ("not plain", None), ("é", None)):
        body["request_id"] = id
        headers = {"X-Request-Id": header} if header else {}
        answer = other.http.post(path, json=body, headers=headers)
        assert not answer.json().get("id", "").endswith(id)
        named = answer.json().get("headers", answer.headers)
        assert {k.lower(): v for k, v in named.items()}["x-unsupported-params"] == "request_id"
        refused = strict.http.post(path, json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")
    same = strict.http.post(path, json={**start, "request_id": "a"}, headers={"X-Request-Id": "a"})
    assert same.status_code == 200


def test_one_id_for_many_requests_at_a_time(serve_scripted: ServeScripted) -> None:
    """Each gets its own answer."""
    together = threading.Barrier(4)
    server = serve_scripted(lambda prompt, index: [prompt])
    contents: dict[str, str] = {}

    def ask(text: str) -> None:
        body = {"messages": [{"role": "user", "content": text}]}
        together.wait(60)
        answer = server.http.post(CHAT, json=body, headers={"X-Request-Id": "same"}).json()
        assert answer["id"] == "chatcmpl-same"
        contents[text] = answer["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(f"text {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == {f"text {i}": f"<user>text {i}\n<assistant>" for i in range(4)}
