"""What requests say about the prompt, over real HTTP; the model repeats its prompt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract.types import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

USER: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MOOD = CHAT + "{{ mood }}"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look"}}]

Echo = Callable[..., Server]


def said(server: Server, **body: Any) -> str:
    """The prompt, as the model that repeats it says."""
    answer = server.http.post("/v1/chat/completions", json={"messages": USER, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def refused(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/chat/completions", json={"messages": USER, **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.fixture
def echo(serve_scripted: ServeScripted) -> Echo:
    """`echo(template, **model)`: a server whose model says its prompt."""

    def start(template: str | None, **model: Any) -> Server:
        engine = {"chat_template": template}
        options = {"reasoning": "none", "tools": "none", **model}
        return serve_scripted(lambda prompt, index: [prompt], engine=engine, **options)

    return start


def with_info(**info: Any) -> Callable[[], ScriptedEngine]:
    """An engine that repeats the prompt, its `ModelInfo` changed."""

    def create() -> ScriptedEngine:
        engine = ScriptedEngine(lambda prompt, index: [prompt])
        known = {name: getattr(engine.info, name) for name in ModelInfo.__dataclass_fields__}
        engine.info = ModelInfo(**{**known, **info})
        return engine

    return create


def test_variables(echo: Echo) -> None:
    # TAB-39 TAB-40 VLLM-22
    server = echo(MOOD)
    assert said(server, chat_template_kwargs={"mood": "fine"}).endswith("<assistant>fine")
    assert said(server, template_vars={"mood": "bad"}).endswith("<assistant>bad")
    answer = server.http.post(
        "/v1/chat/completions",
        json={"messages": USER, "chat_template_kwargs": {"odd": 1, "messages": [], "mood": "so"}},
    )
    assert answer.headers["X-Unsupported-Params"] == (
        "chat_template_kwargs.odd, chat_template_kwargs.messages"
    )
    assert answer.json()["choices"][0]["message"]["content"] == "<user>hi|<assistant>so"


def test_generation_prompt(echo: Echo) -> None:
    # TAB-41 VLLM-19
    server = echo(CHAT)
    assert said(server) == "<user>hi|<assistant>"
    assert said(server, add_generation_prompt=False) == "<user>hi|"


def test_response_prefix(echo: Echo) -> None:
    # TAB-43 TAB-44
    server = echo(CHAT)
    assert said(server, response_prefix="Sure,") == "<user>hi|<assistant>Sure,"
    answer = server.http.post(
        "/v1/chat/completions",
        json={"messages": USER, "response_prefix": "x", "add_generation_prompt": False},
    )
    assert answer.headers["X-Unsupported-Params"] == "response_prefix"
    assert answer.json()["choices"][0]["message"]["content"] == "<user>hi|"


def test_continue_final_message(echo: Echo) -> None:
    # VLLM-20
    server = echo(CHAT)
    messages = [*USER, {"role": "assistant", "content": "It is "}]
    assert said(server, messages=messages) == "<user>hi|<assistant>It is |<assistant>"
    going_on = {"messages": messages, "continue_final_message": True}
    assert said(server, **going_on) == "<user>hi|<assistant>It is "
    assert said(server, **going_on, add_generation_prompt=False) == "<user>hi|<assistant>It is "
    error = refused(server, **going_on, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"
    error = refused(server, continue_final_message="reasoning_content")
    assert error["param"] == "continue_final_message"
    assert "no 'reasoning_content' to continue" in error["message"]


def test_a_message_of_the_model_at_the_end_is_continued_if_the_config_says_so(echo: Echo) -> None:
    server = echo(CHAT, continue_assistant=True)
    begun = [*USER, {"role": "assistant", "content": "It is "}]
    assert said(server, messages=begun) == "<user>hi|<assistant>It is "
    explained = server.http.post("/v1/chat/completions/explain", json={"messages": begun}).json()
    assert explained["prompt"] == "<user>hi|<assistant>It is "
    new_one = "<user>hi|<assistant>It is |<assistant>"
    assert said(server, messages=begun, continue_final_message=False) == new_one
    assert said(server, messages=begun, add_generation_prompt=True) == new_one
    assert said(server, messages=begun, response_prefix="So") == f"{new_one}So"
    assert said(server, messages=USER) == "<user>hi|<assistant>"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*USER, {"role": "assistant", "content": "I ask.", "tool_calls": [call]}]
    assert said(server, messages=called).endswith("I ask.|<assistant>")


def test_documents(echo: Echo) -> None:
    # VLLM-21
    server = echo(CHAT + "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}")
    documents = [{"title": "A", "text": "x"}, {"title": "B", "text": "y"}]
    assert said(server, documents=documents).endswith("[A: x][B: y]")
    assert said(server) == "<user>hi|<assistant>"
    assert refused(server, documents=["text"])["param"].startswith("documents")


def test_what_a_template_leaves_out_is_named(echo: Echo) -> None:
    answer = echo(CHAT).http.post(
        "/v1/chat/completions",
        json={"messages": USER, "tools": TOOLS, "documents": [{"text": "x"}]},
    )
    assert answer.headers["X-Unsupported-Params"] == "tools, documents"


def test_strict_params_refuse_what_a_template_leaves_out(echo: Echo) -> None:
    server = echo(CHAT, server={"strict_params": True})
    assert refused(server, tools=TOOLS)["code"] == "unsupported_parameter"


def test_a_template_of_the_request_has_to_be_allowed(echo: Echo) -> None:
    # VLLM-17
    mine = "mine: {{ messages[0].content }}"
    error = refused(echo(CHAT), chat_template=mine)
    assert (error["param"], error["code"]) == ("chat_template", "unsupported_parameter")
    assert "server.allow_request_template" in error["message"]
    server = echo(CHAT, name="open", server={"allow_request_template": True})
    assert said(server, chat_template=mine) == "mine: hi"
    assert said(server) == "<user>hi|<assistant>"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "does not compile: line 1"),
        ("{{ messages | nothing }}", "does not compile"),
        ("{{ 10**5000 }}", "Exceeds the limit"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('No, thanks.') }}", "No, thanks."),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ {}.a.b }}", "has no attribute 'a'"),
        ("{{ '%(x)s' % {} }}", "(the request's) refused these messages: KeyError: 'x'"),
        ("{{ range(10000000) | list }}", "too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_what_is_wrong_in_a_template_is_the_clients(echo: Echo, source: str, message: str) -> None:
    # TAB-47 TAB-48 VLLM-14 VLLM-26
    server = echo(CHAT, server={"allow_request_template": True})
    error = refused(server, chat_template=source)
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "chat_template_error"
    assert message in error["message"]


def test_a_template_that_costs_too_much_is_stopped_and_the_server_goes_on(echo: Echo) -> None:
    # FIX-10 VLLM-26
    huge = "{{ messages[0].content * 10**10 }}"
    allowed = {"allow_request_template": True}
    for template, sent in ((CHAT, {"chat_template": huge}), (huge, {})):
        server = echo(template, name=template[:4], server=allowed)
        error = refused(server, **sent)
        assert error["code"] == "chat_template_error"
        assert "was stopped: it writes more than 64 MiB" in error["message"]
        assert server.http.get("/health/live").status_code == 200


@pytest.mark.parametrize("allowed", [False, True])
def test_a_name_that_no_template_has(echo: Echo, allowed: bool) -> None:
    # FIX-3 TAB-47
    server = echo(CHAT, server={"allow_request_template": allowed})
    for body in ("/v1/chat/completions", "/v1/chat/completions/explain"):
        answer = server.http.post(body, json={"messages": USER, "chat_template": "nosuch"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "chat_template")
        assert "'nosuch'" in error["message"]
        assert "usable by name: default" in error["message"]


def test_a_template_of_the_request_stops_where_it_says(serve_scripted: ServeScripted) -> None:
    # TAB-46
    server = serve_scripted(["One.", " Z", "Z two"], server={"allow_request_template": True})
    for template, text in (
        ("{% set stop_strings = ['ZZ'] %}x", "One. "),
        ("{{ 1 }}", "One. ZZ two"),
    ):
        body = {"messages": USER, "chat_template": template}
        answer = server.http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == text


def test_a_template_that_fails_leaves_a_trace(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    # VLLM-26
    refused(echo("{{ messages[0].content / 2 }}"))
    assert "a prompt could not be rendered\nTraceback" in caplog.text
    assert "TypeError: unsupported operand" in caplog.text


def test_templates_of_the_model_by_name() -> None:
    """The rules of transformers: `tool_use` with tools, `default` without, others by name."""
    # VLLM-17
    named = {"tool_use": "with tools: {{ tools | tojson }}", "rag": "rag: {{ documents }}"}
    create = engine_backend(with_info(chat_template=CHAT, chat_templates=named))
    config = scripted_config(reasoning="none", tools="none")
    with serve(config, plugins_with(scripted=create)) as server:
        assert said(server) == "<user>hi|<assistant>"
        assert said(server, tools=TOOLS).startswith('with tools: [{"type": "function"')
        assert said(server, tools=TOOLS, tool_choice="none") == "<user>hi|<assistant>"
        assert said(server, chat_template="rag", documents=[{"a": 1}]) == "rag: [{'a': 1}]"
        assert said(server, chat_template="default", tools=TOOLS) == "<user>hi|<assistant>"
        message = refused(server, chat_template="other")["message"]
        assert message.endswith("by name: default, tool_use, rag")


def test_no_default_template() -> None:
    create = engine_backend(with_info(chat_template=None, chat_templates={"rag": CHAT}))
    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        error = refused(server)
        assert (error["param"], error["message"]) == (
            "chat_template",
            "model 'scripted' has no default chat template: name one of rag",
        )
        assert said(server, chat_template="rag") == "<user>hi|<assistant>"


def test_a_model_without_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REAL-12: the error lists the templates that the config may name, ours and the user's."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "mine.jinja").write_text("{{ messages[0].content }}")
    monkeypatch.chdir(tmp_path)
    create = engine_backend(with_info(chat_template=None))
    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        error = refused(server)
        assert (error["param"], error["message"]) == (
            "model",
            "model 'scripted' has no chat template: use /v1/completions, or set the model's "
            "`chat_template` in the config to one of: chatml, llama3, mine",
        )
        [card] = server.http.get("/v1/models").json()["data"]
        assert card["chat"] is False
        switched = {"prompt_template_name": "mine", "model": "scripted"}
        assert server.http.post("/v1/template/switch", json=switched).status_code == 200
        [card] = server.http.get("/v1/models").json()["data"]
        assert card["chat"] is True
        assert said(server) == "hi"


@pytest.mark.parametrize(
    ("chat_template", "text"),
    [("tool_use", "with tools: hi"), ("own.jinja", "own: hi"), (None, "<user>hi|<assistant>")],
)
def test_the_template_that_the_config_names(
    chat_template: str | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jinja").write_text("own: {{ messages[0].content }}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    named = {"tool_use": "with tools: {{ messages[0].content }}"}
    create = engine_backend(with_info(chat_template=CHAT, chat_templates=named))
    config = scripted_config(chat_template=chat_template)
    with serve(config, plugins_with(scripted=create)) as server:
        assert said(server) == text


def test_a_template_that_the_config_names_in_vain(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], chat_template="rag")
    answer = server.http.post("/v1/chat/completions", json={"messages": USER})
    assert answer.status_code == 503
    assert "there is no chat template 'rag'; the model's own: default" in answer.text


class _WithBos(ScriptedEngine):
    """Its tokenizer puts a BOS in front when it adds special tokens."""

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return super().tokenize("^" * add_special_tokens + text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "wanted", "prompt"),
    [
        (CHAT, None, "^<user>hi|<assistant>"),
        (CHAT, False, "^<user>hi|<assistant>"),
        (CHAT, True, "^<user>hi|<assistant>"),
        (CHAT.replace("{{ bos_token }}", ""), None, "<user>hi|<assistant>"),
        (CHAT.replace("{{ bos_token }}", ""), True, "^<user>hi|<assistant>"),
    ],
)
def test_never_a_second_bos(template: str, wanted: bool | None, prompt: str) -> None:
    # TAB-45 VLLM-24
    def create() -> ScriptedEngine:
        engine = _WithBos(lambda prompt, index: [prompt])
        engine.info = with_info(chat_template=template, special_tokens={"bos_token": "^"})().info
        return engine

    config = scripted_config(reasoning="none", tools="none")
    with serve(config, plugins_with(scripted=engine_backend(create))) as server:
        assert said(server, add_special_tokens=wanted) == prompt
        assert said(server, add_bos_token=wanted) == prompt


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_where_the_template_ends_a_turn(
    serve_scripted: ServeScripted, stream: bool
) -> None:
    # TAB-46
    template = (
        "{% set stop_strings = ['### User'] %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    for pieces in (["One.<|im_", "end|>\n<|im_start|>user"], ["One.", "### Us", "er: two"]):
        server = serve_scripted(pieces, name=pieces[0], engine={"chat_template": template})
        create = server.openai.chat.completions.create
        if stream:
            chunks = create(model=pieces[0], messages=USER, stream=True)
            choices = [chunk.choices[0] for chunk in chunks]
            assert "".join(choice.delta.content or "" for choice in choices) == "One."
            assert choices[-1].finish_reason == "stop"
        else:
            choice = create(model=pieces[0], messages=USER).choices[0]
            assert (choice.message.content, choice.finish_reason) == ("One.", "stop")


def test_content_format_of_the_config(echo: Echo) -> None:
    # VLLM-1 VLLM-18
    template = "{{ messages[0].content | tojson }}"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert said(echo(template), messages=parts) == '"a"'
    server = echo(template, name="openai", chat_template_content_format="openai")
    assert said(server, messages=parts) == '[{"type": "text", "text": "a"}]'


def test_messages_and_their_order(echo: Echo) -> None:
    """No messages is an error; which roles may follow each other is the template's to say."""
    # LF-24
    strict = (
        "{% for m in messages if m.role != 'system' %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    server = echo(strict)
    assert refused(server, messages=[])["param"] == "messages"
    messages = [{"role": "assistant", "content": "x"}]
    error = refused(server, messages=messages, strict_roles=True)
    assert (error["param"], error["code"]) == ("messages", "chat_template_error")
    assert error["message"].endswith("roles must alternate")
