"""Requests that are written down, and read again by the parsers."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from enginebay.cli.program import program
from tests.conftest import ServeScripted

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PIECES = ["<think>", "Hm", ".</th", "ink>", "So: ", '<tool_call>{"name": "f", ', '"argu']
PIECES += ['ments": {"a": 1}}</tool', "_call>"]
BODY = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
KEY = "sk-s3cret"


def captured(serve_scripted: ServeScripted, folder: Path, **body: Any) -> Path:
    """The file of one request."""
    server = serve_scripted(
        PIECES,
        reasoning="think",
        tools="hermes",
        server={"capture": str(folder), "api_keys": [KEY]},
    )
    headers = {"x-api-key": KEY, "X-Request-Id": "../../mine"}
    answer = server.http.post("/v1/chat/completions", json={**BODY, **body}, headers=headers)
    assert answer.status_code == 200
    server.settle()
    server.app.state.services.serving.captures.close()
    [file] = folder.iterdir()
    return file


def replay(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program(), ["replay", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_written(serve_scripted: ServeScripted, tmp_path: Path, stream: bool) -> None:
    file = captured(serve_scripted, tmp_path / "captures", stream=stream, n=2)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "mine" in file.name
    text = file.read_text(encoding="utf-8")
    assert KEY not in text
    first, *deltas, last = map(json.loads, text.splitlines())
    assert first["request"]["body"]["messages"][0]["content"] == "Hi"
    assert first["request"]["prompt"].endswith("<assistant>")
    said = "".join(line["delta"]["text"] for line in deltas if line["choice"] == 1)
    assert said.replace("\n", "") == "".join(PIECES)  # the grammar of calls has line breaks
    parts = [
        {"type": "reasoning", "text": "Hm."},
        {"type": "content", "text": "So: "},
        {"type": "tool_call", "index": 0, "name": "f", "arguments": '{"a": 1}'},
    ]
    assert last["answer"]["0"] == last["answer"]["1"] == parts
    assert (last["outcome"], last["cut_off"]) == ("finished", False)


@pytest.mark.parametrize("chunks", ["as-captured", "1", "random"])
def test_replay(serve_scripted: ServeScripted, tmp_path: Path, chunks: str) -> None:
    file = captured(serve_scripted, tmp_path / "captures")
    code, output = replay(str(file), "--chunks", chunks)
    assert code == 0, output
    assert '"name": "f"' in output
    wrong = file.read_text(encoding="utf-8").replace('"text": "So: "}, {', '"text": "So"}, {')
    file.write_text(wrong, encoding="utf-8")
    code, output = replay(str(file), "--chunks", chunks)
    assert code == 1, output
    assert "differs from the recorded answer" in output


def test_a_constrained_answer_is_replayed(serve_scripted: ServeScripted, tmp_path: Path) -> None:
    file = captured(serve_scripted, tmp_path / "captures", tool_choice="required")
    assert json.loads(file.read_text().splitlines()[0])["request"]["recipe"]["form"]
    for chunks in ("as-captured", "1", "random"):
        code, output = replay(str(file), "--chunks", chunks)
        assert code == 0, output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first or the last line is missing"),
        ("{}", "not a line of a capture"),
        ("nonsense", ":1: not a line of a capture"),
        ('{"request": {"recipe": {"odd": 1}}}', ":1: not a line of a capture"),
    ],
)
def test_what_is_no_capture(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(text, encoding="utf-8")
    code, output = replay(str(file))
    assert code == 2
    assert message in output


def test_old_files_go_first(serve_scripted: ServeScripted, tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    server = serve_scripted(["a"], server={"capture": str(folder), "capture_files": 2})
    for number in range(4):
        server.http.post("/v1/completions", json={"prompt": str(number)})
    server.settle()
    server.app.state.services.serving.captures.close()
    assert len(list(folder.iterdir())) == 2


def test_a_long_answer_is_cut_off(
    serve_scripted: ServeScripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enginebay.chat.answer.capture.MAX_BYTES", 10_000)
    file = captured(serve_scripted, tmp_path / "captures", n=64)
    assert file.stat().st_size < 10_200
    code, output = replay(str(file))
    assert code == 2
    assert "too long to be captured" in output


def test_nothing_is_written_unless_asked(serve_scripted: ServeScripted) -> None:
    assert serve_scripted(["a"]).app.state.services.serving.captures is None
