"""`/v1/completions` over real HTTP."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from enginebay import Delta, ServingError, TopLogprob
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

HELLO = ["Hel", "lo ", "there"]
TEXT = "/v1/completions"


def post(server: Server, **body: Any) -> dict[str, Any]:
    response = server.http.post(TEXT, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(server: Server, **body: Any) -> list[dict[str, Any]]:
    lines = server.http.post(TEXT, json={**body, "stream": True}).text.splitlines()
    assert lines[-2] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if line]


def test_whole_and_streamed(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(HELLO)
    create = server.openai.completions.create
    answer = create(model="scripted", prompt="Say hello")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (0, "Hello there", "stop")
    ]
    assert answer.usage
    assert answer.usage.prompt_tokens == len("Say hello")
    chunks = list(
        create(
            model="scripted",
            prompt="Say hello",
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-2].choices[0].text == ""
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def test_text_is_left_as_it_is(serve_scripted: ServeScripted) -> None:
    text = "\n <think>x</think> <tool_call>{}</tool_call>\n"
    server = serve_scripted([text], reasoning="think", tools="hermes")
    answer = server.openai.completions.create(model="scripted", prompt="x")
    assert answer.choices[0].text == text


@pytest.mark.parametrize("prompt", ["hi", [104, 105], [[104, 105]], ["hi"]])
def test_prompts_as_text_or_token_ids(serve_scripted: ServeScripted, prompt: Any) -> None:
    server = serve_scripted(lambda prompt, index: [prompt])
    answer = server.openai.completions.create(model="scripted", prompt=prompt)
    assert answer.choices[0].text == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts(serve_scripted: ServeScripted, stream: bool) -> None:
    server = serve_scripted(lambda prompt, index: [prompt, str(index)])
    body: Any = {"prompt": ["a", "b"], "n": 2}
    texts = [""] * 4
    if stream:
        choices = [choice for event in events(server, **body) for choice in event["choices"]]
    else:
        answer = post(server, **body)
        choices = answer["choices"]
        usage = answer["usage"]
        assert usage["prompt_tokens"] == 2
        assert usage["completion_tokens"] == 4 * 3
        assert usage["total_tokens"] == 14
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    for choice in choices:
        texts[choice["index"]] += choice["text"]
    assert texts == ["a0", "a1", "b0", "b1"]


def test_logprobs(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["Hé", "!"])
    create = server.openai.completions.create
    logprobs: Any = create(model="scripted", prompt="x", logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["H", "é", "!"]
    assert logprobs.token_logprobs == [0.0, 0.0, 0.0]
    assert logprobs.top_logprobs == [{"H": 0.0}, {"é": 0.0}, {"!": 0.0}]
    assert logprobs.text_offset == [0, 1, 2]


def test_one_token_an_event_with_logprobs(serve_scripted: ServeScripted) -> None:
    """SillyTavern reads `logprobs.top_logprobs[0]` of each event."""
    server = serve_scripted(["Hé", "", "!"])
    *chunks, finish = [e["choices"][0] for e in events(server, prompt="x", logprobs=2)]
    assert [chunk["text"] for chunk in chunks] == ["H", "é", "!"]
    assert [chunk["logprobs"]["tokens"] for chunk in chunks] == [["H"], ["é"], ["!"]]
    assert [chunk["logprobs"]["text_offset"] for chunk in chunks] == [[0], [1], [2]]
    assert (finish["text"], finish["finish_reason"]) == ("", "stop")
    assert finish["logprobs"] is None


class Doubtful(ScriptedEngine):
    """Thinks the less of a choice the farther its index is from 2, and nothing of `!`."""

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        for request_id, delta in super().step():
            assert isinstance(delta, Delta)
            doubt = -abs(delta.index - 2.0)
            entries = delta.logprobs and tuple(
                replace(
                    entry,
                    logprob=float("-inf") if entry.token == "!" else doubt,
                    top=(*entry.top, TopLogprob(33, "!", float("-inf"))),
                )
                for entry in delta.logprobs
            )
            yield request_id, replace(delta, logprobs=entries)


def doubtful(**server: Any) -> Any:
    def script(prompt: str, index: int) -> list[str]:
        return [prompt, str(index)] if prompt != "!" else ["a!"]

    backend = engine_backend(lambda: Doubtful(script))
    return serve(scripted_config(server=server), plugins_with(scripted=backend))


def test_best_of() -> None:
    with doubtful() as server:
        answer = post(server, prompt=["a", "b"], n=2, best_of=4)
        texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
        assert texts == [(0, "a2"), (1, "a1"), (2, "b2"), (3, "b1")]
        assert all(choice["logprobs"] is None for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == 2 * 4 * 3
        same = post(server, prompt="a", n=2, best_of=2)
        assert [choice["text"] for choice in same["choices"]] == ["a0", "a1"]
        shown = post(server, prompt="a", best_of=3, logprobs=1)["choices"][0]
        assert shown["logprobs"]["token_logprobs"] == [0.0, 0.0]


def test_minus_infinity_is_a_number_on_the_wire() -> None:
    # VLLM-101
    with doubtful() as server:
        logprobs = post(server, prompt="!", logprobs=2)["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-2.0, -9999.0]
        assert logprobs["top_logprobs"][0] == {"a": 0.0, "!": -9999.0}


def test_tokens_as_ids() -> None:
    # VLLM-105
    with doubtful() as server:
        body: Any = {"prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": True}
        logprobs = post(server, **body)["choices"][0]["logprobs"]
        assert logprobs["tokens"] == [f"token_id:{ord('x')}", f"token_id:{ord('0')}"]
        assert set(logprobs["top_logprobs"][0]) == {f"token_id:{ord('x')}", "token_id:33"}
        chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
        response = server.http.post("/v1/chat/completions", json={**body, **chat})
        entry = response.json()["choices"][0]["logprobs"]["content"][0]
        assert entry["token"] == f"token_id:{ord('<')}"
        assert entry["bytes"] == [ord("<")]
    with doubtful(tokens_as_ids=True) as server:
        asked = post(server, prompt="x", logprobs=1)["choices"][0]["logprobs"]["tokens"]
        assert asked == logprobs["tokens"]
        body["return_tokens_as_token_ids"] = False
        assert post(server, **body)["choices"][0]["logprobs"]["tokens"] == ["x", "0"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Say: ", [ord(c) for c in "Say: "], ["Say: ", "Say: "]])
def test_echo(serve_scripted: ServeScripted, prompt: Any, stream: bool) -> None:
    server = serve_scripted(HELLO)
    prompts = 2 if isinstance(prompt[0], str) and isinstance(prompt, list) else 1
    texts = [""] * 2 * prompts
    body: Any = {"prompt": prompt, "n": 2, "echo": True}
    for answer in events(server, **body) if stream else [post(server, **body)]:
        for choice in answer["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["Say: Hello there"] * 2 * prompts


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs(serve_scripted: ServeScripted, stream: bool) -> None:
    server = serve_scripted(["!", "?"])
    body: Any = {"prompt": "abc", "echo": True, "logprobs": 1, "n": 2}
    seen: list[dict[str, list[Any]]] = [{}, {}]
    for answer in events(server, **body) if stream else [post(server, **body)]:
        for choice in answer["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                seen[choice["index"]].setdefault(name, []).extend(values)
    for logprobs in seen:
        assert logprobs["tokens"] == ["a", "b", "c", "!", "?"]
        assert logprobs["token_logprobs"] == [None, 0.0, 0.0, 0.0, 0.0]
        assert logprobs["top_logprobs"][:2] == [None, {"b": 0.0}]
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_alone_generates_nothing(serve_scripted: ServeScripted, stream: bool) -> None:
    server = serve_scripted(HELLO)
    body: Any = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 0}
    answers = events(server, **body) if stream else [post(server, **body)]
    choices = [answer["choices"][0] for answer in answers]
    assert "".join(choice["text"] for choice in choices) == "abc"
    assert choices[0]["logprobs"]["token_logprobs"] == [None, 0.0, 0.0]
    assert choices[-1]["finish_reason"] == "length"
    if not stream:
        assert answers[0]["usage"]["completion_tokens"] == 0
        assert answers[0]["usage"]["total_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs(serve_scripted: ServeScripted, stream: bool) -> None:
    # VLLM-97
    server = serve_scripted(["!"])
    body: Any = {"prompt": ["ab", "c"], "prompt_logprobs": 1}
    answers = events(server, **body) if stream else [post(server, **body)]
    choices = [choice for answer in answers for choice in answer["choices"]]
    entry = {"98": {"logprob": 0.0, "rank": 1, "decoded_token": "b"}}
    found = [c["prompt_logprobs"] for c in choices if c.get("prompt_logprobs")]
    assert found == [[None, entry], [None]]
    assert not any(choice["logprobs"] for choice in choices)


class Infilling(ScriptedEngine):
    """Has the three tokens of Qwen 2.5 Coder, as characters of no script."""

    TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        for at, token in enumerate(self.TOKENS):
            text = text.replace(token, chr(0xE000 + at))
        return super().tokenize(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("prompt", ["def f(", [ord(c) for c in "def f("]])
def test_suffix(prompt: Any) -> None:
    backend = engine_backend(lambda: Infilling(lambda prompt, index: [prompt]))
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        choice = post(server, prompt=prompt, suffix="): pass")["choices"][0]
        assert choice["text"] == "\ue000def f(\ue001): pass\ue002"
        echoed = post(server, prompt=prompt, suffix="): pass", echo=True, max_tokens=0)
        assert echoed["choices"][0]["text"] == "def f("


def test_suffix_without_tokens_for_it(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(HELLO)
    response = server.http.post(TEXT, json={"prompt": "def f(", "suffix": ": pass"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "<|fim_prefix|>" in error["message"]
    assert post(server, prompt="def f(", suffix="")["choices"][0]["text"] == "Hello there"
