"""`return_token_ids`, as vLLM has it: the tokens of prompts and of choices beside their text."""

import json
from collections import defaultdict
from typing import Any

import pytest

from tests.conftest import ServeScripted
from tests.support import Server

SAID = ["<think>", "So", "</think>", "Hel", "lo, ", "world"]
IDS = [*map(ord, "".join(SAID)), 0]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "return_token_ids": True}
CHATS = "/v1/chat/completions"
TEXTS = "/v1/completions"


def post(server: Server, path: str, **body: Any) -> Any:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(server: Server, path: str, **body: Any) -> list[Any]:
    response = server.http.post(path, json={**body, "stream": True})
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(event) for event in data[:-1]]


def joined(chunks: list[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] += choice["token_ids"]
    return found


@pytest.mark.parametrize("hidden", [False, True])
def test_chats(serve_scripted: ServeScripted, hidden: bool) -> None:
    """Tokens of what a client does not get to see, tags or reasoning, are among them."""
    server = serve_scripted(SAID, reasoning="think")
    body = {**CHAT, "n": 2, "include_reasoning": not hidden}
    whole = post(server, CHATS, **body)
    assert [choice["token_ids"] for choice in whole["choices"]] == [IDS, IDS]
    assert "".join(map(chr, whole["prompt_token_ids"])) == "<user>x\n<assistant>"
    chunks = events(server, CHATS, **body)
    assert joined(chunks) == {0: IDS, 1: IDS}
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [
        whole["prompt_token_ids"],
        *[None] * (len(chunks) - 1),
    ]


def test_tokens_come_with_their_text(serve_scripted: ServeScripted) -> None:
    """Not all at the end: no later than the text that they are the beginning of."""
    chunks = events(serve_scripted(SAID[3:]), TEXTS, prompt="x", return_token_ids=True)
    text = tokens = ""
    for choice in (chunk["choices"][0] for chunk in chunks):
        text += choice["text"]
        tokens += "".join(chr(id) for id in choice["token_ids"] if id)
        assert tokens.startswith(text)
    assert text == tokens == "Hello, world"


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"echo": True}, {"stop": [", wor"]}])
def test_completions(serve_scripted: ServeScripted, more: dict[str, Any]) -> None:
    server = serve_scripted(SAID[3:])
    body: dict[str, Any] = {"prompt": ["ab", "c"], "n": 2, "return_token_ids": True, **more}
    whole = post(server, TEXTS, **body)["choices"]
    ids = [*map(ord, "Hello, world"), 0]
    if "stop" in more:
        assert [choice["text"] for choice in whole] == ["Hello"] * 4
        ids.pop()
    assert [choice["token_ids"] for choice in whole] == [ids] * 4
    prompts = [[97, 98], [97, 98], [99], [99]]
    assert [choice["prompt_token_ids"] for choice in whole] == prompts
    chunks = events(server, TEXTS, **body)
    assert joined(chunks) == dict.fromkeys(range(4), ids)
    firsts: dict[int, Any] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        first = choice["index"] not in firsts
        firsts.setdefault(choice["index"], choice.get("prompt_token_ids"))
        assert first or "prompt_token_ids" not in choice
    assert [firsts[index] for index in range(4)] == prompts


def test_the_best_of_several_have_their_own(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(lambda prompt, index: [f"choice {index}"])
    answer = post(server, TEXTS, prompt="x", best_of=3, n=2, return_token_ids=True)
    for choice in answer["choices"]:
        assert choice["token_ids"] == [*map(ord, choice["text"]), 0]


@pytest.mark.parametrize("value", [None, False])
def test_nobody_gets_them_unasked(serve_scripted: ServeScripted, value: bool | None) -> None:
    server = serve_scripted(SAID)
    body = {**CHAT, "return_token_ids": value}
    for answer in (post(server, CHATS, **body), *events(server, CHATS, **body)):
        assert "token_ids" not in json.dumps(answer)
