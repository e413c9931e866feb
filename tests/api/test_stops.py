"""Where an answer ends, what is left of it there, and who answers in which role."""

import json
from typing import Any

import pytest

from tests.conftest import ServeScripted

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = ["Hel", "lo ", "there"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_that_stay(serve_scripted: ServeScripted, stream: bool) -> None:
    server = serve_scripted(HELLO)
    create = server.openai.completions.create
    extra = {"include_stop_str_in_output": True}
    options: Any = {"model": "scripted", "prompt": "x", "stop": ["o th"], "extra_body": extra}
    answer = create(**options, stream=stream)
    choices = [each.choices[0] for each in (answer if stream else [answer])]
    assert "".join(choice.text for choice in choices) == "Hello th"
    assert (choices[-1].finish_reason, choices[-1].stop_reason) == ("stop", "o th")


def test_stop_tokens(serve_scripted: ServeScripted) -> None:
    # VLLM-69
    server = serve_scripted(HELLO)
    body: dict[str, Any] = {"prompt": "x", "stop_token_ids": [ord("o")]}
    choice = server.http.post(TEXT, json=body).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("Hell", ord("o"))
    body["include_stop_str_in_output"] = True
    choice = server.http.post(TEXT, json=body).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("Hello", ord("o"))


MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]


@pytest.mark.parametrize(
    ("messages", "fields", "role", "content"),
    [
        (MESSAGES, {}, "assistant", "Hello there"),
        (MESSAGES, {"add_generation_prompt": False}, "assistant", "Hello there"),
        (MESSAGES[:1], {"add_generation_prompt": False}, "user", "Hello there"),
        (MESSAGES, {"echo": True}, "assistant", "Well, Hello there"),
        (MESSAGES[:1], {"echo": True}, "assistant", "Hello there"),
        (MESSAGES[:1], {"echo": True, "add_generation_prompt": False}, "user", "hiHello there"),
        (
            [
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                }
            ],
            {"echo": True},
            "assistant",
            "a\nbHello there",
        ),
    ],
)
def test_role_and_echo(
    serve_scripted: ServeScripted, messages: Any, fields: Any, role: str, content: str
) -> None:
    # VLLM-38 VLLM-43 VLLM-95
    server = serve_scripted(HELLO)
    body = {"messages": messages, "n": 2, **fields}
    whole = server.http.post(CHAT, json=body).json()
    for choice in whole["choices"]:
        assert (choice["message"]["role"], choice["message"]["content"]) == (role, content)
    texts = ["", ""]
    roles: list[list[str]] = [[], []]
    stream = server.openai.chat.completions.create(
        model="scripted",
        messages=messages,
        n=2,
        stream=True,
        extra_body=fields,
    )
    for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += [choice.delta.role] if choice.delta.role else []
    assert texts == [content, content]
    assert roles == [[role], [role]]


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({}, "model"),
        ({"echo": True}, "model"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "assistant"),
        ({"add_generation_prompt": False}, "assistant"),
    ],
)
def test_the_role_of_answers_by_the_config(
    serve_scripted: ServeScripted, fields: dict[str, Any], role: str
) -> None:
    # VLLM-1 VLLM-38
    server = serve_scripted(HELLO, response_role="model")
    body = {"messages": [*MESSAGES[:1], {"role": "assistant", "content": "So"}], **fields}
    [choice] = server.http.post(CHAT, json=body).json()["choices"]
    assert choice["message"]["role"] == role
    text = server.http.post(CHAT, json={**body, "stream": True}).text
    assert f'"role":"{role}"' in text


def test_prompt_logprobs_of_a_chat(serve_scripted: ServeScripted) -> None:
    # VLLM-97 FIX-14
    server = serve_scripted(HELLO, engine={"chat_template": "ab"})
    body: dict[str, Any] = {"messages": MESSAGES[:1], "prompt_logprobs": 0}
    expected = [None, {"98": {"logprob": 0.0, "rank": 1, "decoded_token": "b"}}]
    assert server.http.post(CHAT, json=body).json()["prompt_logprobs"] == expected
    text = server.http.post(CHAT, json={**body, "stream": True}).text
    assert text.count('"prompt_logprobs"') == 1


def test_no_logprobs_without_content(serve_scripted: ServeScripted) -> None:
    # TAB-75
    server = serve_scripted(["<think>", "hm"], reasoning="think")
    body = {"messages": MESSAGES[:1], "logprobs": True}
    choice = server.http.post(CHAT, json=body).json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["logprobs"] is None


def test_a_stop_string_that_ends_the_answer_at_once(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(HELLO)
    body = {"messages": MESSAGES[:1], "stop": ["Hel"]}
    choice = server.http.post(CHAT, json=body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert choice["stop_reason"] == "Hel"
    text = server.http.post(CHAT, json={**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    contents = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert contents == ["", None]
