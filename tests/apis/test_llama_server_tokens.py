"""llama-server's routes for tokens and prompts, on the paths that vLLM has, too."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.engine import Engine
from tests.api.test_tokens import BOS, USER, NeverPlain, post, server, tokens
from tests.conftest import ServeScripted
from tests.effort import examples
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

__all__ = ["server"]  # the fixture


# LLS-2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"content": "hi"}, tokens("hi")),
        ({"content": ""}, []),
        ({"content": "hi", "add_special": True}, tokens("<s>hi")),
        ({"content": "<s>hi", "add_special": True}, tokens("<s>hi")),
        ({"content": "<s>hi"}, tokens("<s>hi")),
        ({"content": "<s>", "parse_special": False}, [60, 115, 62]),
        ({"content": "<s>", "parse_special": False, "add_special": True}, [BOS, 60, 115, 62]),
        ({"content": "hi", "with_pieces": None, "model": "scripted"}, tokens("hi")),
    ],
)
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_content(server: Server, prefix: str, body: dict[str, Any], expected: list[int]) -> None:
    assert post(server, f"{prefix}/tokenize", **body) == {"tokens": expected}


def test_pieces(server: Server) -> None:
    answer = post(server, "/tokenize", content="<s>hi", with_pieces=True)
    pieces = ["<s>", "h", "i"]
    assert [token["piece"] for token in answer["tokens"]] == pieces
    assert [token["id"] for token in answer["tokens"]] == tokens("<s>hi")


@examples(40)
@given(text=st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=20), add=st.booleans())
def test_there_and_back(server: Server, text: str, add: bool) -> None:
    ids = post(server, "/tokenize", content=text, add_special=add)["tokens"]
    told = post(server, "/detokenize", tokens=ids)
    assert told == {"prompt": told["content"], "content": told["prompt"]}
    assert told["content"] in (text, f"<s>{text}")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": "x", "prompt": "x"}, "prompt"),
        ({"content": "x", "messages": USER}, "prompt"),
        ({"content": ["x"]}, "content"),
        ({"content": "x" * 40_000 * 256}, "content"),
        ({"content": "x", "add_special": "perhaps"}, "add_special"),
    ],
)
def test_bad_content(server: Server, body: dict[str, Any], param: str) -> None:
    response = server.http.post("/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_fields_of_the_other_form_are_named(server: Server) -> None:
    body = {"content": "x", "return_token_strs": True, "add_special_tokens": True, "odd": 1}
    response = server.http.post("/tokenize", json=body)
    named = response.headers["x-unsupported-params"]
    assert named == "add_special_tokens, odd, return_token_strs"
    response = server.http.post("/tokenize", json={"prompt": "x", "with_pieces": True})
    assert response.headers["x-unsupported-params"] == "with_pieces"
    response = server.http.post("/tokenize", json={"messages": USER, "parse_special": False})
    assert response.headers["x-unsupported-params"] == "parse_special"


def test_an_engine_that_knows_no_plain_text() -> None:
    assert NeverPlain.tokenize_plain is Engine.tokenize_plain
    backend = engine_backend(NeverPlain)
    with serve(scripted_config(), plugins_with(scripted=backend)) as running:
        body = {"content": "<s>", "parse_special": False}
        response = running.http.post("/tokenize", json=body)
        assert response.json() == {"tokens": [BOS]}
        assert response.headers["x-unsupported-params"] == "parse_special"


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_apply_template(server: Server, prefix: str) -> None:
    path = f"{prefix}/apply-template"
    assert post(server, path, messages=USER) == {"prompt": "<s>user:hi;!"}
    body = {
        "messages": USER,
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "chat_template_kwargs": {"mood": "glad"},
        "add_generation_prompt": False,
    }
    assert post(server, path, **body) == {"prompt": "<s>user:hi;lookglad"}
    response = server.http.post(path, json={"messages": USER, "odd": 1})
    assert response.headers["x-unsupported-params"] == "odd"
    assert server.http.post(path, json={"messages": []}).status_code == 400


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_input_tokens(server: Server, prefix: str) -> None:
    path = f"{prefix}/chat/completions/input_tokens"
    body: dict[str, Any] = {"messages": [*USER, {"role": "assistant", "content": "yo"}]}
    told = post(server, path, **body)
    usage = post(server, "/v1/chat/completions", **body)["usage"]
    assert told == {"object": "response.input_tokens", "input_tokens": usage["prompt_tokens"]}
    long: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 5000}]}
    assert post(server, path, **long)["input_tokens"] > 5000
    assert server.http.post("/v1/chat/completions", json=long).status_code == 400
    assert server.http.post(path, json={}).json()["error"]["param"] == "messages"


def test_a_model_without_a_chat_template(serve_scripted: ServeScripted) -> None:
    running = serve_scripted(["x"], engine={"chat_template": None})
    for path in ("/apply-template", "/v1/chat/completions/input_tokens"):
        response = running.http.post(path, json={"messages": USER})
        assert response.status_code == 400
        assert "has no chat template" in response.text


def test_a_real_model(demo: Server) -> None:
    """A prompt made by hand of what the routes say is the chat's."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 7 + 5?"}]}
    prompt = post(demo, "/apply-template", **chat)["prompt"]
    counted = post(demo, "/v1/chat/completions/input_tokens", **chat)["input_tokens"]
    usage = post(demo, "/v1/completions", prompt=prompt, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == counted
    pieces = post(demo, "/tokenize", content=prompt, add_special=True, with_pieces=True)["tokens"]
    assert len(pieces) == counted
    told = post(demo, "/detokenize", tokens=[piece["id"] for piece in pieces])
    assert prompt in told["content"]
