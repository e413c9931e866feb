"""Special tokens of a model in its answers: text only for those who ask. REAL-5"""

from typing import Any

import pytest

from tests.support import Server

_MARKER, _TURN_END = "<|im_start|>", "<|im_end|>"
_USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def marker(demo: Server) -> int:
    body = {"text": _MARKER, "add_bos_token": False}
    [token_id] = demo.http.post("/v1/token/encode", json=body).json()["tokens"]
    assert isinstance(token_id, int)
    return token_id


def answer(demo: Server, path: str, marker: int, **fields: Any) -> Any:
    """Five tokens that are all the marker."""
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": _USER}
    body = {**asked, "max_tokens": 5, "allowed_token_ids": [marker], **fields}
    response = demo.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def text_of(choice: Any) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_special_tokens_are_text_only_if_asked_for(demo: Server, path: str, marker: int) -> None:
    assert text_of(answer(demo, path, marker)) == ""
    shown = answer(demo, path, marker, skip_special_tokens=False)
    assert text_of(shown) == 5 * _MARKER


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stop_strings_find_special_tokens(demo: Server, path: str, marker: int) -> None:
    stopped = answer(demo, path, marker, stop=[2 * _MARKER], return_token_ids=True)
    assert text_of(stopped) == ""
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", 2 * _MARKER)
    assert stopped["token_ids"] == [marker, marker]


def test_logprobs_show_the_sampled_tokens(demo: Server, marker: int) -> None:
    choice = answer(demo, "/v1/completions", marker, logprobs=1)
    assert choice["logprobs"]["tokens"] == 5 * [_MARKER]
    assert choice["logprobs"]["text_offset"] == 5 * [0]
    chat = answer(demo, "/v1/chat/completions", marker, logprobs=True, top_logprobs=1)
    entries = chat["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == 5 * [_MARKER]
    assert [entry["bytes"] for entry in entries] == 5 * [[]]
    shown = answer(demo, "/v1/chat/completions", marker, logprobs=True, skip_special_tokens=False)
    entries = shown["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == 5 * _MARKER


def test_an_echo_shows_the_prompt_as_it_is(demo: Server, marker: int) -> None:
    prompt = f"a{_TURN_END}b"
    assert text_of(answer(demo, "/v1/completions", marker, prompt=prompt, echo=True)) == prompt


def test_a_grammar_of_special_tokens(demo: Server, marker: int) -> None:
    body = {"prompt": "a", "max_tokens": 9, "guided_grammar": 'start: "x" <|im_start|> "y"'}
    for skip, expected in ((True, "xy"), (False, f"x{_MARKER}y")):
        response = demo.http.post("/v1/completions", json={**body, "skip_special_tokens": skip})
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
