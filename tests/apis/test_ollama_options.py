"""What Ollama's clients say of loading, and of sampling."""

from collections.abc import Iterator

import pytest

from tests.apis.ollama_support import (
    CHAT,
    GENERATE,
    UNSUPPORTED,
    answered,
    key_store,
    ollama_server,
    refused,
    user,
)
from tests.support import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server(engine={"context_length": 2000}) as running:
        yield running


def test_loading(server: Server) -> None:
    # OLL-9
    before = generated(server)
    for path, empty in ((CHAT, {"messages": []}), (CHAT, {}), (GENERATE, {"prompt": ""})):
        for stream in ({}, {"stream": False}):
            answer = server.http.post(path, json={"model": "scripted:latest", **empty, **stream})
            assert answer.headers["content-type"] == "application/json"
            assert UNSUPPORTED not in answer.headers
            loaded = answered(answer)
            assert loaded.pop("created_at")
            message = {"role": "assistant", "content": ""}
            text = {"response": ""} if path == GENERATE else {"message": message}
            assert loaded == {
                "model": "scripted:latest",
                "done": True,
                "done_reason": "load",
                **text,
            }
    assert generated(server) == before


def generated(server: Server) -> list[str]:
    """How many tokens the server says that it has made."""
    lines = server.http.get("/metrics").text.splitlines()
    return [line for line in lines if "generation_tokens" in line and line[0] != "#"]


def test_a_model_is_loaded_when_it_is_asked_for() -> None:
    # OLL-9 OLL-17
    with ollama_server(load="request") as server:
        assert server.http.get("/api/ps").json() == {"models": []}
        answered(server.http.post(GENERATE, json={"model": "scripted"}))
        [loaded] = server.http.get("/api/ps").json()["models"]
        assert loaded["name"] == "scripted"


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0s", "0m0s", "-0"])
def test_unloading(zero: object) -> None:
    with ollama_server() as server:
        body = {"model": "scripted", "prompt": "", "keep_alive": zero}
        assert answered(server.http.post(GENERATE, json=body))["done_reason"] == "unload"
        assert server.http.get("/api/ps").json() == {"models": []}


def test_loading_names_what_it_does_not_know(server: Server) -> None:
    answer = server.http.post(CHAT, json={"model": "scripted", "made_up": 1})
    assert answer.headers[UNSUPPORTED] == "made_up"


def test_only_admins_unload() -> None:
    with ollama_server(server={"auth": "required"}, keys=key_store()) as server:
        body = {"model": "scripted", "keep_alive": 0}
        for keep in ("5m", -1, "-1", 300, None, "", "0.5s"):
            as_user = {"Authorization": "Bearer user"}
            loading = server.http.post(GENERATE, json={**body, "keep_alive": keep}, headers=as_user)
            assert answered(loading)["done_reason"] == "load"
        assert "admin" in refused(server.http.post(CHAT, json=body, headers=as_user), 403)
        assert refused(server.http.post(CHAT, json=body), 401)
        as_admin = {"Authorization": "Bearer admin"}
        answer = answered(server.http.post(CHAT, json=body, headers=as_admin))
        assert answer["done_reason"] == "unload"


def test_keep_alive_is_taken(server: Server) -> None:
    for keep in (0, "5m", -1, "-1s", 3.5):
        body = {"model": "scripted", "messages": user("hi"), "keep_alive": keep, "stream": False}
        answer = server.http.post(CHAT, json=body)
        assert answered(answer)["done_reason"] == "stop"
        assert UNSUPPORTED not in answer.headers


LOADING = {
    **{"num_ctx": 8192, "num_gpu": -1, "main_gpu": 0, "num_thread": 8, "num_batch": 512},
    **{"use_mmap": True, "use_mlock": False, "numa": False, "low_vram": True, "f16_kv": True},
    **{"vocab_only": False, "draft_num_predict": 4},
}


def test_options(server: Server) -> None:
    # OLL-18
    body = {"model": "scripted", "messages": user("hi"), "stream": False}
    answer = server.http.post(CHAT, json={**body, "options": LOADING})
    assert answered(answer)["message"]["content"] == "Hello, world"
    assert UNSUPPORTED not in answer.headers
    options = {"foo": 1, "num_keep": 4, "penalize_newline": True, "empty": None, "num_predict": 5}
    more = {"template": "x", "context": [1], "surprise": 1, "keep_alive": "5m"}
    answer = server.http.post(CHAT, json={**body, "options": options, **more})
    assert answered(answer)["message"]["content"] == "Hello"
    named = ["context", "options.foo", "options.num_keep", "options.penalize_newline"]
    assert sorted(answer.headers[UNSUPPORTED].split(", ")) == [*named, "surprise", "template"]


def test_sampling_options_reach_the_engine(server: Server) -> None:
    """This engine has none of them, and says so, under the client's names."""
    options = {
        **{"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 1},
        **{"repeat_penalty": 1.2, "repeat_last_n": 32, "presence_penalty": 1},
        **{"frequency_penalty": 1, "typical_p": 0.9, "tfs_z": 0.9},
        **{"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
    }
    body = {"model": "scripted", "messages": user("hi"), "stream": False, "options": options}
    answer = server.http.post(CHAT, json=body)
    named = answer.headers[UNSUPPORTED].split(", ")
    assert sorted(named) == sorted(f"options.{name}" for name in options)


def test_fields_of_other_apis_are_passed_on(server: Server) -> None:
    body = {"model": "scripted", "messages": user("hi"), "stream": False}
    answer = server.http.post(CHAT, json={**body, "stop": ["o"], "n": 2, "min_p": 0.5})
    assert answered(answer)["message"]["content"] == "Hell"
    assert answer.headers[UNSUPPORTED] == "n, min_p"


def test_what_was_lowered_is_named_as_an_option(server: Server) -> None:
    body = {"model": "scripted", "messages": user("hi"), "options": {"num_predict": 10**6}}
    answer = server.http.post(CHAT, json=body)
    assert answer.headers["x-clamped-params"].startswith("options.num_predict=19")
