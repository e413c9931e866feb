"""Where media of a chat may come from: the config's rules, as clients see them."""

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract.errors import UnsupportedModalityError
from enginebay.testing import ScriptedChat
from tests.api.test_media import CHAT, NOISE, RED, image, png, says
from tests.support import (
    Server,
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)


class Origin(BaseHTTPRequestHandler):
    """Has one picture."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(png())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def seeing(**server: Any) -> Iterator[Server]:
    engine = scripted(["red"], media=["image"])
    with serve(scripted_config(server=server), plugins_with(scripted=engine)) as running:
        yield running


def ask(server: Server, url: str) -> tuple[int, dict[str, Any]]:
    answer = server.http.post(CHAT, json={"messages": [says(image(url))]})
    return answer.status_code, answer.json()


HERE = ["127.0.0.0/8"]


def test_three_ways_to_the_same_picture(origin: str, tmp_path: Path) -> None:
    # MM-3 MM-7 LF-7 LF-10 LF-30 MEDIA-2 MEDIA-31
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "red.png").write_bytes(png())
    (tmp_path / "inside.png").write_bytes(png())
    with seeing(media_networks=HERE, media_dir=str(tmp_path / "in")) as server:
        urls = [RED, f"{origin}/red.png", (tmp_path / "in" / "red.png").as_uri()]
        answers = [ask(server, url) for url in urls]
        assert [status for status, _ in answers] == [200] * 3
        assert len({str(body["usage"]["prompt_tokens_details"]) for _, body in answers}) == 1
        outside = [
            (tmp_path / "inside.png").as_uri(),
            f"{(tmp_path / 'in').as_uri()}/../inside.png",
            f"{(tmp_path / 'in').as_uri()}/none.png",
        ]
        messages = set()
        for url in outside:
            status, body = ask(server, url)
            assert status == 400
            messages.add(body["error"]["message"])
        assert len(messages) == 1


def test_this_machine_is_not_asked(origin: str) -> None:
    # MM-5 LF-11 LF-31 MEDIA-22 MEDIA-24
    port = origin.rpartition(":")[2]
    with seeing() as server:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
            status, body = ask(server, f"http://{host}:{port}/red.png")
            assert status == 400
            assert body["error"]["param"] == "messages[0].content[0]"
        status, body = ask(server, f"file://{__file__}")
        assert status == 400


def test_fetching_can_be_turned_off(origin: str) -> None:
    # MM-8 MEDIA-28
    with seeing(fetch_media=False, media_networks=HERE) as server:
        status, body = ask(server, f"{origin}/red.png")
        assert status == 400
        assert body["error"]["param"] == "messages[0].content[0]"
        assert ask(server, RED)[0] == 200


def test_caps_are_named(origin: str) -> None:
    # MM-6 MEDIA-17
    with seeing(media_networks=HERE, max_media_bytes=50, max_media_items=2) as server:
        for url in (f"{origin}/red.png", RED):
            status, body = ask(server, url)
            assert status == 400
            assert "more than 50 bytes" in body["error"]["message"]
        body = {"messages": [says(*[image()] * 3)]}
        error = server.http.post(CHAT, json=body).json()["error"]
        assert error["param"] == "messages[0].content[2]"


def test_a_client_that_leaves_ends_the_fetch() -> None:
    # MEDIA-12
    with socket.create_server(("127.0.0.1", 0)) as slow, seeing(media_networks=HERE) as server:
        url = f"http://127.0.0.1:{slow.getsockname()[1]}/red.png"
        body = server.http.build_request("POST", CHAT, json={"messages": [says(image(url))]})
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
            client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + body.read())
            fetching, _ = slow.accept()
            assert fetching.recv(65536).startswith(b"GET /red.png")
        with fetching:
            assert fetching.recv(1) == b""  # closed by the server


def test_models_without_media_fetch_nothing() -> None:
    # MEDIA-13
    with socket.create_server(("127.0.0.1", 0)) as slow:
        url = f"http://127.0.0.1:{slow.getsockname()[1]}/red.png"
        blind = scripted(["red"])
        config = scripted_config(server={"media_networks": HERE})
        with serve(config, plugins_with(scripted=blind)) as server:
            status, body = ask(server, url)
            assert (status, body["error"]["code"]) == (400, UnsupportedModalityError.code)
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.accept()


@pytest.mark.parametrize("fetch", [True, False])
def test_models_that_take_messages(origin: str, fetch: bool) -> None:
    """What they fetch themselves is theirs to check; nothing here fetches for them."""
    seen: list[Any] = []

    def script(chat: Any, index: int) -> list[str]:
        seen.extend(chat.messages)
        return ["red"]

    engine = engine_backend(lambda: ScriptedChat(script, media=["image"]))
    config = scripted_config(server={"fetch_media": fetch})
    with serve(config, plugins_with(scripted=engine)) as server:
        status, body = ask(server, f"{origin}/red.png")
        assert status == (200 if fetch else 400)
        if fetch:
            details = body["usage"]["prompt_tokens_details"]
            assert details == {"cached_tokens": 0, "image_tokens": 1}
        else:
            assert body["error"]["param"] == "messages[0].content[0]"
        beside = {"role": "user", "content": "see", "images": [RED.partition(",")[2]]}
        answer = server.http.post(CHAT, json={"messages": [beside]})
        assert answer.status_code == 200
        part = {"type": "image_url", "image_url": {"url": RED}}
        assert seen[-1]["content"] == [part, {"type": "text", "text": "see"}]
        for bad in (["x"], [5], [""]):
            answer = server.http.post(CHAT, json={"messages": [{**beside, "images": bad}]})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages[0].images[0]"
        status, body = ask(server, "file:///etc/passwd")
        assert (status, body["error"]["param"]) == (400, "messages[0].content[0]")
        sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
        answer = server.http.post(CHAT, json={"messages": [says(sound)]})
        assert answer.json()["error"]["code"] == "unsupported_modality"


def test_captures_and_the_log_hold_no_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # MEDIA-29
    data = base64.b64encode(NOISE).decode()
    caplog.set_level("INFO")
    with seeing(capture=str(tmp_path), log_prompts=True) as server:
        beside = {"role": "user", "content": "see", "images": [data]}
        body = {"messages": [says(image(f"data:image/png;base64,{data}")), beside]}
        assert server.http.post(CHAT, json=body).status_code == 200
        server.settle()
    [file] = tmp_path.glob("*.jsonl")
    captured = file.read_text()
    assert data[:100] not in captured
    assert captured.count("sha256:") == 2
    assert data[:100] not in caplog.text
    assert "<image>" in caplog.text


def test_captures_and_the_log_hold_no_data_of_models_that_take_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor are options of theirs taken in silence."""
    # MEDIA-29
    data = base64.b64encode(NOISE).decode()
    caplog.set_level("INFO")
    engine = engine_backend(lambda: ScriptedChat(["red"], media=["image"]))
    config = scripted_config(server={"capture": str(tmp_path), "log_prompts": True})
    with serve(config, plugins_with(scripted=engine)) as server:
        beside = {"role": "user", "content": "see", "images": [data]}
        body = {
            "messages": [says(image(f"data:image/png;base64,{data}")), beside],
            "mm_processor_kwargs": {"max_pixels": 5},
            "media_io_kwargs": {"image": {"max_pixels": 5}},
        }
        answer = server.http.post(CHAT, json=body)
        assert answer.status_code == 200
        named = answer.headers["x-unsupported-params"].split(", ")
        assert named == ["mm_processor_kwargs", "media_io_kwargs"]
        server.settle()
    [file] = tmp_path.glob("*.jsonl")
    captured = file.read_text()
    assert data[:100] not in captured
    assert captured.count("sha256:") == 4  # in the body, and in the prompt
    assert data[:100] not in caplog.text
    assert "sha256:" in caplog.text
