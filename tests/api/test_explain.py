"""`/v1/chat/completions/explain` says what the chat route does, and `/inspect` what a model is."""

from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted_config, serve
from tests.support import engine_backend as on_a_thread

USER: list[Any] = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def explained(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/chat/completions/explain", json={"messages": USER, **body})
    assert answer.status_code == 200, answer.text
    explanation: dict[str, Any] = answer.json()
    return explanation


@pytest.fixture
def server(serve_scripted: ServeScripted) -> Server:
    """A model that repeats its prompt."""
    return serve_scripted(
        lambda prompt, index: [prompt],
        engine={"chat_template": TEMPLATE},
        sampling={"temperature": 0.5, "stop": ["END"]},
    )


def test_an_explanation(server: Server) -> None:
    found = explained(server, top_p=0.25, max_tokens=7, odd="x", chat_template_kwargs={"x": 1})
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert found["object"] == "chat.completion.explanation"
    assert found["prompt"] == prompt
    assert found["prompt_tokens"] == len(prompt)
    assert "".join(token["text"] for token in found["tokens"]) == prompt
    assert [token["id"] for token in found["tokens"]] == [ord(c) for c in prompt]
    assert found["context_length"] == 4096
    assert (found["room"], found["max_tokens"]) == (4096 - len(prompt), 7)
    assert found["error"] is None
    assert found["starts_in_reasoning"] is False
    assert found["stop"] == {"strings": ["END", "<|im_end|>"], "token_ids": []}
    assert {"odd", "top_p", "temperature", "chat_template_kwargs.x"} <= set(found["ignored"])
    assert set(found["headers"]["X-Unsupported-Params"].split(", ")) == set(found["ignored"])
    sampling = found["sampling"]
    assert sampling["top_p"] == {"value": 0.25, "source": "request"}
    assert sampling["temperature"] == {"value": 0.5, "source": "config"}
    assert sampling["top_k"] == {"value": 0, "source": "default"}
    assert sampling["stop"]["source"] == "config"
    assert found["bos"] == {
        "text": None,
        "count": 0,
        "reason": "none: the model's own template writes none",
    }
    assert found["model"]["reasoning"]["name"] == "think"
    assert found["model"]["reasoning"]["evidence"].startswith("reads back the reasoning")
    assert found["model"]["tools"] == {"name": None, "evidence": "none found in the chat template"}
    assert found["model"]["template"]["turn_end"] == "<|im_end|>"
    assert found["model"]["template"]["variables"] == ["enable_thinking"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"response_prefix": "Well,"},
        {"messages": [{"role": "developer", "content": "x"}, *USER]},
        {
            "messages": [*USER, {"role": "assistant", "content": "a"}],
            "continue_final_message": True,
        },
    ],
)
def test_it_agrees_with_the_answer(server: Server, body: dict[str, Any]) -> None:
    body = {"messages": USER, "ignore_eos": True, **body}  # for the prompt may stand in the answer
    found = explained(server, **body)
    answer = server.http.post("/v1/chat/completions", json=body)
    whole = answer.json()
    message = whole["choices"][0]["message"]
    if found["starts_in_reasoning"]:
        assert message["reasoning_content"].startswith("<|im_start|>user\nhi")
    else:
        assert message["content"] == found["prompt"]
    assert whole["usage"]["prompt_tokens"] == found["prompt_tokens"]
    assert answer.headers["X-Unsupported-Params"] == found["headers"]["X-Unsupported-Params"]


def test_notes_on_messages(server: Server) -> None:
    found = explained(server, messages=[{"role": "developer", "content": "x"}, *USER])
    assert found["notes"] == [
        "messages[0]: developer is sent as system: the chat template does not support developer"
    ]


def test_what_is_refused_is_refused_alike(server: Server) -> None:
    for body in (
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": USER, "chat_template": "{{ mine }}"},
        {"messages": USER, "model": "nobody"},
        {"messages": USER, "temperature": -1},
    ):
        answers = [
            server.http.post(f"/v1/chat/completions{end}", json=body) for end in ("", "/explain")
        ]
        assert answers[0].status_code == answers[1].status_code >= 400
        assert answers[0].json() == answers[1].json()


def test_a_prompt_that_is_too_long(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], engine={"context_length": 20})
    body = {"messages": [{"role": "user", "content": "x" * 30}]}
    found = explained(server, **body)
    assert found["error"] == server.http.post("/v1/chat/completions", json=body).json()["error"]
    assert found["error"]["code"] == "context_length_exceeded"
    assert (found["tokens"], found["prompt_tokens"], found["room"]) == (None, None, 0)
    assert found["prompt"].endswith("<assistant>")


def test_bos_is_counted() -> None:
    # TAB-45
    class WithBos(ScriptedEngine):
        def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [94] * add_special_tokens + super().tokenize(text, add_special_tokens=False)

    def create() -> ScriptedEngine:
        from dataclasses import replace

        engine = WithBos(["x"], chat_template=TEMPLATE)
        engine.info = replace(engine.info, special_tokens={"bos_token": "^"})
        return engine

    with serve(scripted_config(), plugins_with(scripted=on_a_thread(create))) as server:
        for wanted, reason in (
            (None, "the chat template writes it"),
            (True, "the chat template writes it, so the tokenizer adds no second one"),
        ):
            found = explained(server, add_special_tokens=wanted)
            assert found["bos"] == {"text": "^", "count": 1, "reason": reason}


def test_explain_without_the_prefix_and_with_keys(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], server={"api_keys": ["one"]})
    path = "/chat/completions/explain"
    assert server.http.post(path, json={"messages": USER}).status_code == 401
    key = {"Authorization": "Bearer one"}
    assert server.http.post(path, json={"messages": USER}, headers=key).status_code == 200


def test_inspect(server: Server, serve_scripted: ServeScripted) -> None:
    found = server.http.get("/v1/models/scripted/inspect").json()
    assert found == explained(server)["model"]
    assert found["template"]["name"] == "the model's"
    assert found["template"]["system"] is True
    assert found["template"]["tools"] is False
    assert found["configured"] == {"temperature": 0.5, "stop": ["END"]}
    assert server.http.get("/v1/models/nobody/inspect").status_code == 404
    bare = serve_scripted(["x"], engine={"chat_template": None}, name="a/b")
    found = bare.http.get("/v1/models/a/b/inspect").json()
    assert (found["id"], found["template"]) == ("a/b", None)
    assert found["reasoning"]["evidence"] == "there is no chat template"
