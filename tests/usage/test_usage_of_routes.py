"""Every route of every API counts what its answers say was used. KEY-1"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay import Chat, Delta, RouteRequest, ServingError, TokenCounts
from enginebay.chat.answer.parts import text_of
from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from enginebay.testing import ScriptedChat
from tests.apis.test_messages_answers import Cached
from tests.page.support import Gated
from tests.pooling import BACKENDS
from tests.support import Server, engine_backend, plugins_with, scripted, serve

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
Json = dict[str, Any]
Counts = tuple[int, int]
"""Tokens of the prompt and of the answer."""


def keys_of(**keys: Json) -> KeyStore:
    """Keys that are their names; `root` is an admin's."""
    known = [Key(name, digest_of(name), **limits) for name, limits in keys.items()]
    return KeyStore(Path("no such file"), [*known, Key("root", digest_of("root"), "admin")])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("usage") / "usage.db"
    backends = {
        **BACKENDS,
        "says": scripted(["Hel", "lo", " you"]),
        "cached": engine_backend(lambda: Cached(["Hel", "lo"])),
        "chats": engine_backend(lambda: ScriptedChat(["Hel", "lo"])),
        "slow": engine_backend(lambda: ScriptedChat(says_slowly)),
        "told": engine_backend(lambda: Told(says_slowly)),
    }
    models = [{"name": name, "backend": name, "path": "."} for name in backends]
    settings = {"usage_file": str(file), "auth": "required", "key_metrics": True}
    plugins = plugins_with(**backends)
    plugins.routes("POST", "/twice", twice)
    config = Config.model_validate({"models": models, "server": settings})
    with serve(config, plugins, keys=keys_of(**{f"user{n}": {} for n in range(50)})) as server:
        yield server


async def twice(request: RouteRequest) -> Any:
    """A plugin's route: two answers, and an embedding."""
    one = await (await request.chat({"model": "says", **CHAT})).whole()
    two = await (await request.complete({"model": "says", "prompt": "abc"})).whole()
    three = await request.embed({"model": "embeds", "input": "abc"})
    return [one["usage"], two["usage"], {**three["usage"], "completion_tokens": 0}]


slowly = Gated(["Hello ", "there ", "you"])


def says_slowly(chat: Chat, index: int) -> Iterator[str]:
    return slowly("", index)


class Told(ScriptedChat):
    """Says with the first word what has been used by then."""

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        for id, delta in super().step():
            if isinstance(delta, Delta) and "Hello " in map(text_of, delta.parts):
                delta = replace(delta, usage=TokenCounts(prompt_tokens=2, completion_tokens=6))
            yield id, delta


def openai(usage: Json) -> Counts:
    return usage["prompt_tokens"], usage.get("completion_tokens", 0)


def of_body(answer: Any) -> Counts:
    return openai(answer.json()["usage"])


def of_stream(answer: Any) -> Counts:
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    [usage] = [event["usage"] for event in events if event.get("usage")]
    return openai(usage)


def of_anthropic(answer: Any) -> Counts:
    usage = answer.json()["usage"]
    cached = (usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens"))
    return usage["input_tokens"] + sum(filter(None, cached)), usage["output_tokens"]


def of_responses(answer: Any) -> Counts:
    usage = answer.json()["usage"]
    return usage["input_tokens"], usage["output_tokens"]


def of_ollama(answer: Any) -> Counts:
    last = json.loads(answer.text.splitlines()[-1])
    return last["prompt_eval_count"], last.get("eval_count", 0)


def of_cohere(answer: Any) -> Counts:
    return answer.json()["meta"]["tokens"]["input_tokens"], 0


def exactly(prompt: int, completion: int) -> Callable[[Any], Counts]:
    """For answers that say nothing of it."""
    return lambda answer: (prompt, completion)


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
MESSAGES = {**CHAT, "max_tokens": 100}
DOCUMENTS = {"query": "a", "documents": ["ab", "ba", "c"]}
ROUTES: list[tuple[str, str, Json, Callable[[Any], Counts]]] = [
    ("/v1/chat/completions", "says", CHAT, of_body),
    ("/v1/chat/completions", "says", {**CHAT, "n": 3, "max_tokens": 2}, of_body),
    ("/v1/chat/completions", "says", {**CHAT, **STREAMED}, of_stream),
    ("/chat/completions", "says", {**CHAT, **STREAMED}, of_stream),
    ("/v1/chat/completions", "chats", CHAT, of_body),
    ("/v1/chat/completions", "chats", {**CHAT, **STREAMED, "n": 2}, of_stream),
    ("/v1/messages", "cached", MESSAGES, of_anthropic),
    ("/v1/completions", "says", {"prompt": ["one", "three", "fiv"], "n": 2}, of_body),
    ("/v1/completions", "says", {"prompt": "one", **STREAMED}, of_stream),
    ("/v1/completions", "says", {"prompt": "one", "max_tokens": 0, "echo": True}, of_body),
    ("/v1/responses", "says", {"input": "hi"}, of_responses),
    ("/v1/messages", "says", MESSAGES, of_anthropic),
    ("/api/chat", "says", {**CHAT, "stream": False}, of_ollama),
    ("/api/chat", "says", CHAT, of_ollama),
    ("/api/generate", "says", {"prompt": "one"}, of_ollama),
    ("/api/embed", "embeds", {"input": ["abc", "b"]}, of_ollama),
    ("/api/embeddings", "embeds", {"prompt": "abc"}, exactly(5, 0)),
    ("/api/v1/generate", "says", {"prompt": "one"}, exactly(3, 10)),
    ("/v1/embeddings", "embeds", {"input": ["abc", "dd"]}, of_body),
    ("/embed", "embeds", {"inputs": "abc"}, exactly(5, 0)),
    ("/v1/rerank", "ranks", DOCUMENTS, of_body),
    ("/v1/rerank", "embeds", DOCUMENTS, of_body),
    ("/v1/rerank", "raw", {**DOCUMENTS, "raw_scores": True}, of_body),
    ("/v2/rerank", "ranks", DOCUMENTS, of_cohere),
    ("/v1/score", "ranks", {"text_1": "a", "text_2": ["ab", "c"]}, of_body),
    ("/v1/classify", "three", {"input": ["abc", "b"]}, of_body),
    ("/v1/score/evaluation", "rewards", {"messages": ["abc"]}, exactly(3, 0)),
]


def usage(server: Server, asking: str, **query: Any) -> Json:
    answer = server.http.get("/v1/usage", params=query, headers={"x-api-key": asking})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    assert found["object"] == "list"
    return found


@pytest.mark.wing("kobold", "messages", "ollama", "responses", "tei")
@pytest.mark.parametrize("number", range(len(ROUTES)), ids=lambda n: f"{ROUTES[n][0]}-{n}")
def test_usage_is_what_the_answers_say(server: Server, number: int) -> None:
    path, model, body, read = ROUTES[number]
    key = f"user{number}"
    expected = [0, 0]
    for count in (1, 2):
        answer = server.http.post(path, json={"model": model, **body}, headers={"x-api-key": key})
        assert answer.status_code == 200, answer.text
        expected = [so_far + more for so_far, more in zip(expected, read(answer), strict=True)]
        server.settle()
        [entry] = usage(server, key)["data"]
        assert entry["requests"] == count
        assert [entry["prompt_tokens"], entry["completion_tokens"]] == expected
        assert (entry["key"], entry["model"]) == (key, model)
    assert expected[0] > 0


def test_cached_tokens(server: Server) -> None:
    body = {"model": "cached", **CHAT}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": "user45"})
    [entry] = usage(server, "user45")["data"]
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached == entry["cached_tokens"] < entry["prompt_tokens"]


@pytest.mark.parametrize(("model", "prompt", "completion"), [("slow", 0, 2), ("told", 2, 7)])
def test_a_chat_that_is_cut_off_before_its_model_tells_its_usage(
    server: Server, model: str, prompt: int, completion: int
) -> None:
    key = {"x-api-key": "user46" if model == "slow" else "user47"}
    body = {"model": model, "stream": True, **CHAT}
    slowly.go_on()
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=key) as answer:
        lines = answer.iter_lines()
        while "Hello" not in next(lines):
            pass
        slowly.go_on()
        while "there" not in next(lines):
            pass
    server.settle()
    assert slowly.closed.wait(60)
    [entry] = usage(server, key["x-api-key"])["data"]
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (prompt, completion)
    slowly.go_on(3)
    answer = server.http.post("/v1/chat/completions", json={"model": model, **CHAT}, headers=key)
    assert openai(answer.json()["usage"]) == (2, len("Hello there you"))
    [entry] = usage(server, key["x-api-key"])["data"]
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (prompt + 2, completion + 15)


def test_embeddings_that_fail_count_what_was_computed(server: Server) -> None:
    """Or else a key could have the model compute such inputs for ever."""
    key = {"x-api-key": "user48"}
    body = {"model": "three", "input": ["abc", "!"]}
    answer = server.http.post("/v1/classify", json=body, headers=key)
    assert answer.status_code == 400
    assert "not finite" in answer.json()["error"]["message"]
    [entry] = usage(server, "user48")["data"]
    assert (entry["requests"], entry["prompt_tokens"]) == (1, 5 + 3)


def test_answers_of_a_plugins_route(server: Server) -> None:
    said = server.http.post("/twice", headers={"x-api-key": "user40"}).json()
    entries = {entry["model"]: entry for entry in usage(server, "user40")["data"]}
    chat, text, embedding = map(openai, said)
    assert entries.keys() == {"says", "embeds"}
    assert openai(entries["says"]) == (chat[0] + text[0], chat[1] + text[1])
    assert openai(entries["embeds"]) == embedding
    assert [entry["requests"] for entry in entries.values()] == [1, 1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "no such model", **CHAT}),
        ("/v1/chat/completions", {"model": "says", "messages": "hi"}),
        ("/v1/completions", {"model": "says", "prompt": "x" * 5000}),
        ("/v1/embeddings", {"model": "says", "input": "x"}),
        ("/v1/chat/completions/explain", {"model": "says", **CHAT}),
        ("/v1/token/encode", {"model": "says", "text": "abc"}),
        ("/v1/messages/count_tokens", {"model": "says", **CHAT}),
    ],
)
def test_what_computes_nothing_counts_nothing(server: Server, path: str, body: Json) -> None:
    server.http.post(path, json=body, headers={"x-api-key": "user41"})
    assert usage(server, "user41")["data"] == []


def test_who_sees_what(server: Server) -> None:
    for key in ("user42", "user43"):
        body = {"model": "says", "prompt": "abc"}
        server.http.post("/v1/completions", json=body, headers={"x-api-key": key})
    names = {entry["key"] for entry in usage(server, "root")["data"]}
    assert {"user42", "user43"} <= names
    assert {entry["key"] for entry in usage(server, "root", key="user42")["data"]} == {"user42"}
    assert usage(server, "root", key="nobody")["data"] == []
    assert usage(server, "root", key="")["data"] == []
    assert usage(server, "user42") == usage(server, "user42", key="user42", days=1)
    assert "user43" not in json.dumps(usage(server, "user42"))
    for other in ("user43", "root", "nobody", ""):
        path = f"/v1/usage?key={other}"
        refused = server.http.get(path, headers={"x-api-key": "user42"})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "permission_denied"
        assert other not in refused.json()["error"]["message"] or not other
    assert server.http.get("/v1/usage").status_code == 401
    assert server.http.get("/usage", headers={"x-api-key": "user42"}).json() == usage(
        server, "user42"
    )


@pytest.mark.parametrize("days", ["0", "-1", "x", "", "1.5", "1e3", "36501", "9" * 30, "\x00"])
def test_queries_that_make_no_sense(server: Server, days: str) -> None:
    answer = server.http.get("/v1/usage", params={"days": days}, headers={"x-api-key": "root"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "days"
    assert answer.json()["error"]["message"].startswith("days: Input should be")


@pytest.mark.parametrize("name", ["' OR 1=1 --", "\x00", "a" * 4000, "ß☃", "%00", "\\"])
def test_names_that_no_key_has(server: Server, name: str) -> None:
    assert usage(server, "root", key=name)["data"] == []


def test_key_metrics_are_for_admins(server: Server) -> None:
    """KEY-3"""
    body = {"model": "says", "prompt": "abc"}
    server.http.post("/v1/completions", json=body, headers={"x-api-key": "user44"})
    [used] = usage(server, "user44")["data"]
    text = server.http.get("/metrics", headers={"x-api-key": "root"}).text
    for name, value in (
        ("requests", used["requests"]),
        ("prompt_tokens", used["prompt_tokens"]),
        ("cached_prompt_tokens", used["cached_tokens"]),
        ("generation_tokens", used["completion_tokens"]),
    ):
        labels = '{key="user44",model_name="says"}'
        assert f"enginebay:key_{name}_total{labels} {float(value)}\n" in text
    others = server.http.get("/metrics", headers={"x-api-key": "user44"}).text
    assert "enginebay:prompt_tokens_total" in others
    assert "user44" not in others
    assert "enginebay:key_" not in others


def test_without_keys_all_is_of_none() -> None:
    models = [{"name": "m", "backend": "m", "path": "."}]
    with serve(Config.model_validate({"models": models}), plugins_with(m=scripted("abc"))) as at:
        at.http.post("/v1/completions", json={"prompt": "abc"}, headers={"x-api-key": "any"})
        found = at.http.get("/v1/usage").json()
        [entry] = found["data"]
        assert (entry["key"], entry["prompt_tokens"], entry["completion_tokens"]) == (None, 3, 4)
        assert set(found["limits"].values()) == {None}
        assert at.http.get("/v1/usage?key=").json()["data"] == [entry]
        assert "enginebay:key_" not in at.http.get("/metrics").text, "unless the config says so"
