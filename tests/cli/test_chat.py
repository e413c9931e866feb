"""`enginebay chat` against real servers."""

import builtins
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from enginebay.cli.client import address, configured, connect
from enginebay.cli.conversation import Conversation, loop
from enginebay.plugins import Plugins
from tests.cli.conftest import Run
from tests.conftest import ServeScripted
from tests.support import Server

THINKING = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<think></think>"
HERMES = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>"


def echo(prompt: str, index: int) -> list[str]:
    return [prompt]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server, Iterable[object]], Conversation]:
    """Type these lines into a conversation; an exception among them is raised by the keyboard."""

    def run_loop(server: Server, lines: Iterable[object]) -> Conversation:
        typed = iter(lines)

        def read(prompt: str) -> str:
            line = next(typed, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr(builtins, "input", read)
        with connect(server.url, None) as client:
            conversation = Conversation(client, "scripted")
            loop(conversation)
        return conversation

    return run_loop


Talk = Callable[[Server, Iterable[object]], Conversation]
Captured = pytest.CaptureFixture[str]


def test_one_message(run: Run, serve_scripted: ServeScripted) -> None:
    """Only the answer is on stdout."""
    server = serve_scripted(["Hel", "lo ", "[bold]you[/bold]"])
    result = run("chat", "--url", server.url, "Hi")
    assert result.exit_code == 0
    assert result.stdout == "Hello [bold]you[/bold]\n"
    assert "answer 23 tokens" in result.stderr


def test_a_line_separator_ends_no_event(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["one\u2028two"])
    assert run("chat", "--url", server.url, "Hi").stdout == "one\u2028two\n"


def test_the_prompt_has_system_and_message(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(echo)
    result = run("chat", "--url", f"{server.url}/v1/", "--system", "Be kind.", "Hi")
    assert result.stdout == "<system>Be kind.\n<user>Hi\n<assistant>\n"


def test_piped_input_is_the_message(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(echo)
    result = run("chat", "--url", server.url, input="two\nlines\n")
    assert result.stdout == "<user>two\nlines\n<assistant>\n"


def test_reasoning_is_apart_from_the_answer(run: Run, serve_scripted: ServeScripted) -> None:
    script = ["<think>", "let me see", "</think>", "42"]
    server = serve_scripted(script, engine={"chat_template": THINKING})
    result = run("chat", "--url", server.url, "?")
    assert result.stdout == "42\n"
    assert result.stderr.startswith("let me see\n")


def test_tool_calls(run: Run, serve_scripted: ServeScripted) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    server = serve_scripted([call], engine={"chat_template": HERMES}, tools="hermes")
    result = run("chat", "--url", server.url, "?")
    assert result.exit_code == 0
    assert "weather" in result.output


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_streamed_and_whole_with_tools(
    run: Run, serve_scripted: ServeScripted, tmp_path: Path, stream: str
) -> None:
    call = '{"name": "weather", "arguments": {"city": "Paris"}}'
    script = ["<think>hm", "m</think>", "Let me see.", "<tool_call>", call, "</tool_call>"]
    server = serve_scripted(script, engine={"chat_template": THINKING}, tools="hermes")
    tools = tmp_path / "tools.json"
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    tools.write_text(json.dumps([tool]), encoding="utf-8")
    result = run("chat", "--url", server.url, stream, "--tools", str(tools), "?")
    assert result.exit_code == 0
    assert result.stdout == "Let me see.\n"
    assert "hmm" in result.stderr
    assert 'tool call: weather {"city": "Paris"}' in result.stderr


def test_tools_that_cannot_be_read(run: Run, serve_scripted: ServeScripted, tmp_path: Path) -> None:
    server = serve_scripted(["ok"])
    result = run("chat", "--url", server.url, "--tools", str(tmp_path / "nothing"), "?")
    assert result.exit_code == 1
    assert "cannot be read as JSON" in result.stderr


def test_the_answer_that_is_cut_off_says_so(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["abcdef"], sampling={"max_tokens": 3})
    result = run("chat", "--url", server.url, "?")
    assert result.stdout == "abc\n"
    assert result.stderr.startswith("cut off: max_tokens or the end of the context, prompt ")


def test_the_model_of_that_name(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="mine")
    assert run("chat", "--url", server.url, "--model", "mine", "?").stdout == "ok\n"
    result = run("chat", "--url", server.url, "--model", "other", "?")
    assert result.exit_code == 1
    assert "the model 'other' does not exist; available: mine" in result.stderr


def test_keys(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["one"]})
    result = run("chat", "--url", server.url, "?")
    assert result.exit_code == 1
    assert result.stderr.endswith("; name one with --api-key, or in ENGINEBAY_API_KEY\n")
    assert run("chat", "--url", server.url, "--api-key", "one", "?").stdout == "ok\n"
    environment = {"ENGINEBAY_API_KEY": "one"}
    assert run("chat", "--url", server.url, "?", env=environment).stdout == "ok\n"


def test_the_configured_server(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["one"]})
    port = server.url.rpartition(":")[2]
    Path("config.yml").write_text(f"server: {{port: {port}, api_keys: [one]}}", encoding="utf-8")
    assert run("chat", "?").stdout == "ok\n"


def test_the_server_of_no_config() -> None:
    assert address(configured(None)) == "http://127.0.0.1:5000"


def test_nobody_answers(run: Run) -> None:
    result = run("chat", "--url", "127.0.0.1:1", "?")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("nothing answers at 127.0.0.1:1: start the server with `engi")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("plugin")
def test_a_server_for_this_chat_only(run: Run) -> None:
    result = run("chat", "--path", ".", "--backend", "scripted", "Hi")
    assert result.exit_code == 0
    assert result.stdout == "Hello, world\n"
    assert "Hm.\n" in result.stderr


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("path", "backend", "code", "message"),
    [
        (".", "failing", 1, "the model at . cannot be loaded: out of memory; take a smaller model"),
        ("nope", "scripted", 2, "models[0].path: there is no file or folder "),
        (".", "scripte", 2, "models[0].backend: no backend 'scripte' is installed"),
    ],
)
def test_a_model_that_cannot_be_loaded(
    run: Run, path: str, backend: str, code: int, message: str
) -> None:
    result = run("chat", "--path", path, "--backend", backend, "Hi")
    assert result.exit_code == code
    assert message in result.stderr


@pytest.mark.usefixtures("plugin")
def test_the_backend_is_found_by_what_is_at_the_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    assert run("chat", "--path", "script", "Hi").stdout == "Hello, world\n"
    (tmp_path / "other").mkdir()
    result = run("chat", "--path", "other", "Hi")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("no backend recognises other as a model; name one of ")
    assert "hf, llamacpp, scripted" in result.stderr
    (tmp_path / "torn").mkdir()
    torn = run("chat", "--path", "torn", "Hi")
    assert torn.exit_code == 2
    assert "no backend recognises torn as a model" in torn.stderr
    assert run("chat", "--path", "nope").stderr == "there is no file or folder nope\n"


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        ({"config.json": "{}"}, "hf"),
        ({"config.json": '{"quantization_config": {"quant_method": "gptq"}}'}, "hf"),
        ({"config.json": '{"quantization_config": {"quant_method": "EXL2"}}'}, None),
        ({"config.json": "[]"}, "hf"),
        ({"config.json": "no JSON"}, "hf"),
        ({"model-q4.gguf": ""}, "llamacpp"),
        ({"README.md": ""}, None),
    ],
)
def test_what_the_built_in_backends_load(
    files: dict[str, str], backend: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")

    def who(path: Path) -> list[str]:
        entries = Plugins().backends.items()
        return [name for name, entry in entries if entry.serves and entry.serves(path)]

    assert {"hf", "llamacpp"} & set(who(folder)) == ({backend} if backend else set())
    assert who(tmp_path / "a.gguf") == ["llamacpp"]


def test_a_conversation(serve_scripted: ServeScripted, talk: Talk, capsys: Captured) -> None:
    """History, commands, Ctrl-C at the prompt, Ctrl-D."""
    server = serve_scripted(echo)
    lines = ["one", "", "two", "/reset", "/system Be kind.", KeyboardInterrupt(), "three", "/what"]
    conversation = talk(server, [*lines, "/help"])
    shown = capsys.readouterr()
    first = "<user>one\n<assistant>"
    assert shown.out.startswith(f"{first}\n<user>one\n<assistant>{first}\n<user>two\n<assistant>\n")
    assert shown.out.endswith("\n<system>Be kind.\n<user>three\n<assistant>\n")
    assert conversation.messages[0]["content"] == "three"
    assert "unknown command /what" in shown.err
    assert "Ctrl-D or /exit quits" in shown.err
    assert "/system TEXT" in shown.err


def test_exit_leaves(serve_scripted: ServeScripted, talk: Talk, capsys: Captured) -> None:
    assert talk(serve_scripted(echo), ["/exit", "not sent"]).messages == []
    assert capsys.readouterr().out == ""


def test_an_error_leaves_the_conversation_as_it_was(
    serve_scripted: ServeScripted, talk: Talk, capsys: Captured
) -> None:
    server = serve_scripted(["ok"], engine={"context_length": 90})
    conversation = talk(server, ["short", "x" * 99, "again"])
    shown = capsys.readouterr()
    assert shown.out == "ok\nok\n"
    assert "maximum context length is 90 tokens" in shown.err
    history = [message["content"] for message in conversation.messages]
    assert history == ["short", "ok", "again", "ok"]


def test_a_server_that_went_away(talk: Talk, capsys: Captured) -> None:
    server = Server("http://127.0.0.1:1", None, None, None, None)  # type: ignore[arg-type]
    conversation = talk(server, ["hello"])
    assert conversation.messages == []
    assert "is not responding" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_the_answer_only(
    serve_scripted: ServeScripted, talk: Talk, capsys: Captured
) -> None:
    def script(prompt: str, index: int) -> Iterator[str]:
        if "again" in prompt:
            yield "fine"
            return
        yield "aaa"
        os.kill(os.getpid(), signal.SIGINT)
        yield from iter(lambda: "b", "")

    server = serve_scripted(script, engine={"context_length": 10**9})
    conversation = talk(server, ["go", "again"])
    shown = capsys.readouterr()
    assert "stopped\n" in shown.err
    assert shown.out.endswith("fine\n")
    stopped = conversation.messages[1]["content"]
    assert set(stopped) <= {"a", "b"}
    assert [message["content"] for message in conversation.messages[2:]] == ["again", "fine"]


def test_a_model_cannot_command_the_terminal(
    serve_scripted: ServeScripted, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    server = serve_scripted(["\x1b]0;title\x07", "a\tb\nc"])
    monkeypatch.setenv("FORCE_COLOR", "1")
    with connect(server.url, None) as client:
        conversation = Conversation(client, "scripted")
        conversation.ask("?")
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "b\nc" in shown
    assert conversation.messages[-1]["content"] == "\x1b]0;title\x07a\tb\nc"
