"""A BOS in prompts of templates that are not the model's own, on every route. ANS-8"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.api.test_media import RED
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

USER: list[Any] = [{"role": "user", "content": "hi"}]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WRITES = "\n{{ bos_token }}" + PLAIN
CHATML = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


class _WithBos(ScriptedEngine):
    """Says its prompt. Its tokenizer puts a BOS in front when it adds special tokens."""

    adds = True

    def __init__(self, template: str | None, **options: Any) -> None:
        super().__init__(lambda prompt, index: [prompt], chat_template=template, **options)
        self.info = replace(self.info, special_tokens={"bos_token": "^"})

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        text = "^" * (add_special_tokens and self.adds) + text
        return super().tokenize(text, add_special_tokens=False)


class _WithoutBos(_WithBos):
    """Its tokenizer adds none, although the vocabulary has one."""

    adds = False


@contextmanager
def served(
    own: str | None, engine: type[_WithBos] = _WithBos, media: Any = (), **model: Any
) -> Iterator[Server]:
    config = scripted_config(
        reasoning="none", tools="none", server={"allow_request_template": True}, **model
    )
    create = engine_backend(lambda: engine(own, media=media))
    with serve(config, plugins_with(scripted=create)) as server:
        yield server


def prompts(server: Server, messages: Any = USER, **body: Any) -> dict[str, str]:
    """The prompt of a chat, as each route has it."""
    sent = {"messages": messages, **body}

    def post(path: str, **more: Any) -> Any:
        answer = server.http.post(path, json={**sent, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    chat = {"ignore_eos": True, **sent}
    said = post("/v1/chat/completions", **chat)
    explained = post("/v1/chat/completions/explain")
    tokens = post("/tokenize")["tokens"]
    found = {
        "chat": said["choices"][0]["message"]["content"],
        "explain": explained["prompt"],
        "tokens of explain": "".join(token["text"] for token in explained["tokens"]),
        "tokenize": "".join(map(chr, tokens)),
        "apply-template": post("/apply-template")["prompt"],
    }
    assert said["usage"]["prompt_tokens"] == len(tokens)
    assert post("/v1/chat/completions/input_tokens")["input_tokens"] == len(tokens)
    if not body:
        counted = post("/v1/messages/count_tokens", model="scripted")["input_tokens"]
        assert counted == len(tokens)
    return found


def everywhere(server: Server, prompt: str, **body: Any) -> None:
    assert set(prompts(server, **body).values()) == {prompt}


@pytest.mark.wing("llama_server", "messages")
@pytest.mark.parametrize(
    ("own", "prompt"),
    [(PLAIN, "<user>hi"), (WRITES.lstrip(), "^<user>hi"), (WRITES, "\n^<user>hi")],
)
def test_the_models_own_template_decides_for_itself(own: str, prompt: str) -> None:
    with served(own) as server:
        everywhere(server, prompt)
        everywhere(server, prompt, chat_template="default")
        everywhere(server, prompt, chat_template=own)  # the same text in a request
        assert "model's own" in report(server) or "writes '^'" in report(server)


def report(server: Server) -> str:
    return str(server.http.get("/v1/models/scripted/inspect").json()["template"]["bos"])


@pytest.mark.wing("llama_server", "messages")
def test_a_shipped_template_gets_a_bos(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), served(None, chat_template="chatml") as server:
        everywhere(server, f"^{CHATML}")
        everywhere(server, CHATML, add_special_tokens=False)
        assert report(server).startswith("'^' is added")
    assert "BOS of chats: '^' is added" in caplog.text


@pytest.mark.wing("llama_server", "messages")
def test_a_shipped_template_that_writes_a_bos() -> None:
    with served(None, chat_template="llama3") as server:
        prompt = prompts(server)["chat"]
        assert prompt.startswith("^<|start_header_id|>")
        everywhere(server, prompt)
        assert report(server) == "the template writes '^'"


@pytest.mark.wing("llama_server", "messages")
def test_no_bos_where_the_tokenizer_adds_none() -> None:
    with served(None, _WithoutBos, chat_template="chatml") as server:
        everywhere(server, CHATML)
        assert report(server) == "none: the tokenizer adds none"


@pytest.mark.wing("llama_server", "messages")
@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (PLAIN, "^<user>hi"),
        (WRITES, "\n^<user>hi"),
        ("^" + PLAIN, "^<user>hi"),
        ("{{ messages[0].content }}", "^hi"),
    ],
)
def test_files_switched_templates_and_those_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, prompt: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.jinja").write_text(source, encoding="utf-8")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "mine.jinja").write_text(source, encoding="utf-8")
    own = "own: {{ messages[0].content }}"
    with served(own) as server:
        everywhere(server, "own: hi")
        everywhere(server, prompt, chat_template=source)
        for name in ("mine", "beside.jinja"):
            assert server.http.post("/v1/template/switch", json={"name": name}).is_success
            everywhere(server, prompt)
            assert server.http.post("/v1/template/unload").is_success
            everywhere(server, "own: hi")
    with served(own, chat_template="beside.jinja") as server:
        everywhere(server, prompt)


@pytest.mark.wing("llama_server", "messages")
def test_a_text_that_begins_with_bos_gets_no_second_one() -> None:
    with served(None, chat_template="chatml") as server:
        bare = "{{ messages[0].content }}"
        said = [{"role": "user", "content": "^hi"}]
        everywhere(server, "^hi", messages=said, chat_template=bare)
        everywhere(server, "^hi", messages=said, chat_template=bare, add_special_tokens=True)
        told = prompts(server, add_special_tokens=True)
        assert (told["chat"], told["tokenize"]) == (f"^{CHATML}", f"^{CHATML}")


@pytest.mark.wing("llama_server", "messages")
def test_a_file_with_the_text_of_the_models_own_template(tmp_path: Path) -> None:
    file = tmp_path / "copy.jinja"
    file.write_text(PLAIN, encoding="utf-8")
    with served(PLAIN, chat_template=str(file)) as server:
        everywhere(server, "<user>hi")


def test_a_prompt_with_an_image() -> None:
    part = {"type": "image_url", "image_url": {"url": RED}}
    with served(None, media=("image",), chat_template="chatml") as server:
        body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "hi"}]}]}
        report = server.http.post("/v1/chat/completions/explain", json=body).json()
        assert report["bos"]["count"] == 1
        assert report["prompt"].startswith("^<|im_start|>user\n<image>")
