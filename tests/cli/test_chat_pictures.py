"""Pictures in `enginebay chat`."""

from pathlib import Path
from unittest.mock import ANY

import pytest
from PIL import Image

from enginebay.testing.scripted import MEDIA, Script
from tests.cli.conftest import Run
from tests.cli.test_chat import Captured, Talk, echo
from tests.cli.test_chat import talk as talk
from tests.conftest import ServeScripted
from tests.media.samples import encoded

SEES = {"media": ["image"]}


def told(prompts: list[str]) -> Script:
    """A script that says ok, and whom one asks what it was told."""

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return ["ok"]

    return script


def drawn(name: str, size: tuple[int, int] = (9, 9)) -> str:
    """The name of a PNG that was just drawn."""
    Path(name).write_bytes(encoded(Image.new("RGB", size, "red"), "PNG"))
    return name


def test_pictures(run: Run, serve_scripted: ServeScripted) -> None:
    """In their order, in front of the text: four tokens each, one more for the larger one."""
    server = serve_scripted(echo, engine=SEES)
    images = ["--image", drawn("a.png"), "--image", drawn("b.png", (256, 256))]
    result = run("chat", "--url", server.url, *images, "What is it?")
    assert result.stdout == f"<user>{MEDIA * 4}\n{MEDIA * 5}\nWhat is it?\n<assistant>\n"
    alone = run("chat", "--url", server.url, *images[:2], input="")
    assert alone.stdout == f"<user>{MEDIA * 4}\n<assistant>\n"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("nothing.png", "nothing.png cannot be read: No such file or directory"),
        (".", ". cannot be read: Is a directory"),
        ("notes.png", "notes.png: the picture is in no format that is read here; send PNG, "),
        ("empty.png", "empty.png: the picture is empty: it has no bytes"),
        ("paper.png", "paper.png: what was sent as a picture is PDF (application/pdf), which "),
    ],
)
def test_what_is_no_picture(
    run: Run, serve_scripted: ServeScripted, file: str, message: str
) -> None:
    """One line, and nothing is sent."""
    prompts: list[str] = []
    server = serve_scripted(told(prompts), engine=SEES)
    for name, text in {"notes.png": "some notes", "empty.png": "", "paper.png": "%PDF-1.7"}.items():
        Path(name).write_text(text, encoding="utf-8")
    result = run("chat", "--url", server.url, "--image", file, "?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1
    assert prompts == []


def test_a_model_that_takes_no_pictures(run: Run, serve_scripted: ServeScripted) -> None:
    prompts: list[str] = []
    server = serve_scripted(told(prompts))
    result = run("chat", "--url", server.url, "--image", drawn("a.png"), "?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "the model 'scripted' takes no pictures; what it takes: text\n"
    assert prompts == []


def test_a_picture_that_the_server_refuses(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], engine=SEES, server={"max_media_bytes": 9})
    result = run("chat", "--url", server.url, "--image", drawn("a.png"), "?")
    assert result.exit_code == 1
    assert "more than 9 bytes" in result.stderr
    named = run("chat", "--url", server.url, "--image", "a.png", "--model", "other", "?")
    assert "the model 'other' does not exist" in named.stderr


def test_pictures_in_a_conversation(
    serve_scripted: ServeScripted, talk: Talk, capsys: Captured
) -> None:
    """They go with the next message that is answered, and stay in the history."""
    server = serve_scripted(echo, engine={**SEES, "context_length": 140})
    lines = ["/image", "/image nothing.png", f"/image {drawn('a b.png')}", "x" * 200, "one", "two"]
    conversation = talk(server, [*lines, "/image a b.png", "/reset", "three"])
    shown = capsys.readouterr()
    assert "/image needs the name of a file\nnothing.png cannot be read: No such file" in shown.err
    assert "a b.png goes with the next message\n" in shown.err
    assert f"<user>{MEDIA * 4}\none\n<assistant>\n<user>two" in shown.out.replace("\n\n", "\n")
    assert [message["content"] for message in conversation.messages] == ["three", ANY]


def test_no_pictures_in_a_conversation(
    serve_scripted: ServeScripted, talk: Talk, capsys: Captured
) -> None:
    talk(serve_scripted(["ok"]), [f"/image {drawn('a.png')}", "Hi"])
    shown = capsys.readouterr()
    assert "the model 'scripted' takes no pictures; what it takes: text" in shown.err
    assert shown.out == "ok\n"
