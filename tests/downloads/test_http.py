"""`POST /v1/download` and `enginebay download`."""

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from enginebay.cli.program import program
from enginebay.models.downloads.hub import Hub
from tests.config.conftest import clean_place as clean_place
from tests.downloads.conftest import FILES, StartHub
from tests.downloads.hub import REPO, TOKEN
from tests.downloads.test_download import content, until
from tests.support import Server, plugins_with, scripted, scripted_config, serve

BODY = {"repo_id": REPO}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folders = {"model_dir": str(tmp_path / "models"), "lora_dir": str(tmp_path / "loras")}
    config = scripted_config(server={**folders, "max_download_bytes": 20_000})
    with serve(config, plugins_with(scripted=scripted(["hi"]))) as running:
        yield running


def post(server: Server, **body: Any) -> httpx2.Response:
    return server.http.post("/v1/download", json={**BODY, **body})


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_body_of_tabbyapi(start_hub: StartHub, server: Server, tmp_path: Path) -> None:
    hub = start_hub()
    answer = post(
        server,
        repo_type="model",
        folder_name="mine",
        revision="main",
        token=TOKEN,
        include=["*"],
        exclude=["sub/*"],
        chunk_limit=2,
        timeout=100,
    )
    assert answer.json() == {"download_path": str(tmp_path / "models" / "mine")}
    assert answer.headers["x-unsupported-params"] == "chunk_limit"
    assert content(tmp_path / "models" / "mine") == {k: v for k, v in FILES.items() if "/" not in k}
    assert f"/api/models/{REPO}/revision/main" in [path for path, _, _ in hub.asked]


def test_the_body_of_sillytavern(start_hub: StartHub, server: Server, tmp_path: Path) -> None:
    start_hub()
    answer = post(
        server,
        api_server="http://localhost:5000",
        api_type="tabby",
        revision="",
        folder_name="",
        token="",
        include=[""],
        exclude=[],
    )
    assert answer.json() == {"download_path": str(tmp_path / "models" / "tiny")}
    assert "x-unsupported-params" not in answer.headers
    assert content(tmp_path / "models" / "tiny") == FILES


def test_a_lora_can_be_loaded_then(start_hub: StartHub, server: Server, tmp_path: Path) -> None:
    start_hub({"adapter_config.json": b"{}"})
    assert post(server, repo_type="lora").json()["download_path"] == str(tmp_path / "loras/tiny")
    [card] = server.http.get("/v1/loras").json()["data"]
    assert card["id"] == "tiny"


@pytest.mark.parametrize("how", ["body", "header"])
def test_progress(start_hub: StartHub, server: Server, tmp_path: Path, how: str) -> None:
    start_hub()
    body, headers = (
        ({"stream": True}, {}) if how == "body" else ({}, {"Accept": "text/event-stream"})
    )
    answer = server.http.post("/v1/download", json={**BODY, **body}, headers=headers)
    said = events(answer)
    total = sum(map(len, FILES.values()))
    assert {each["total"] for each in said} == {total}
    assert [each["status"] for each in said] == ["processing"] * (len(said) - 1) + ["finished"]
    assert said[-1]["completed"] == total
    assert said[-1]["download_path"] == str(tmp_path / "models" / "tiny")
    numbers = [each["completed_files"] for each in said]
    assert numbers == sorted(numbers)
    ends = {number: said[numbers.index(number)]["file"] for number in numbers}
    assert list(ends) == [0, 1, 2, 3], "at the start, and after each file"
    assert sorted(list(ends.values())[1:]) == sorted(FILES)
    completed = [each["completed"] for each in said]
    assert completed == sorted(completed)


def test_errors_before_the_first_byte_have_a_status(start_hub: StartHub, server: Server) -> None:
    start_hub(status=404, code="RepoNotFound")
    for stream in (False, True):
        answer = post(server, stream=stream)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "repository_not_found"
    start_hub(status=403, code="GatedRepo")
    error = post(server).json()["error"]
    assert (error["type"], error["param"]) == ("permission_error", "token")


def test_later_ones_are_the_last_event(start_hub: StartHub, server: Server) -> None:
    start_hub(serves={"model.safetensors": b"short"})
    assert "error" in events(post(server, stream=True))[-1]
    start_hub(serves={"model.safetensors": b"short"})
    answer = post(server)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "hub_error")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"repo_id": ""}, "repo_id"),
        ({"repo_id": "../../etc"}, "repo_id"),
        ({"repo_id": None}, "repo_id"),
        ({"repo_type": "dataset"}, "repo_type"),
        ({"folder_name": "../x"}, "folder_name"),
        ({"folder_name": "/x"}, "folder_name"),
        ({"token": "two words"}, "token"),
        ({"include": "x"}, "include"),
        ({"include": [1]}, "include[0]"),
        ({"timeout": -1}, "timeout"),
        ({"stream": "perhaps"}, "stream"),
    ],
)
def test_bad_bodies(start_hub: StartHub, server: Server, body: dict[str, Any], param: str) -> None:
    start_hub()
    answer = post(server, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert "two words" not in answer.text


def test_a_listing_that_cannot_be_stored(start_hub: StartHub, server: Server) -> None:
    # SEC-12
    start_hub({"evil": b"", "evil/x": b""})
    answer = post(server)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "repo_id")
    assert "has files 'evil' and 'evil/x', which cannot be stored" in answer.text


def test_more_than_the_config_allows(start_hub: StartHub, server: Server) -> None:
    start_hub({"big": b"x" * 20_001})
    answer = post(server)
    assert answer.status_code == 400
    assert "max_download_bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_it(
    start_hub: StartHub, server: Server, tmp_path: Path, stream: bool
) -> None:
    gate = threading.Event()
    hub = start_hub(gates={"model.safetensors": gate}, breaks={"model.safetensors": [5000]})

    downloads = server.app.state.services.downloads

    async def leave() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {**BODY, "stream": stream}
            asking = asyncio.create_task(client.post("/v1/download", json=body))
            await asyncio.to_thread(hub.reached.wait, 60)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave())
    server.run(until(lambda: all(control.stopped for control in downloads._controls)))
    gate.set()
    server.run(until(lambda: not downloads._taken))
    assert not (tmp_path / "models/tiny/model.safetensors").exists()
    hub.gates.clear()
    assert post(server).status_code == 200
    assert content(tmp_path / "models" / "tiny") == FILES


# The command.


Run = Callable[..., Result]


@pytest.fixture
def run(clean_place: Path) -> Run:
    Path("config.yml").write_text("server: {model_dir: mine, max_download_bytes: 20000}")
    return lambda *arguments: CliRunner().invoke(program(), ["download", *arguments])


def test_the_command(start_hub: StartHub, run: Run) -> None:
    start_hub()
    result = run(REPO, "--exclude", "sub/*", "--include", "*", "--folder-name", "here")
    assert result.exit_code == 0, result.output
    folder = Path("mine/here").absolute()
    assert result.stdout == f"{folder}\n"
    assert "2 of 2: " in result.stderr
    assert content(folder) == {k: v for k, v in FILES.items() if "/" not in k}


def test_the_command_says_what_is_wrong(start_hub: StartHub, run: Run) -> None:
    start_hub(status=403, code="GatedRepo")
    result = run(REPO)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is gated: accept its terms" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_command_goes_on_after_ctrl_c(
    start_hub: StartHub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub()
    snapshot = Hub.snapshot

    def interrupt(self: Hub) -> Any:
        signal.raise_signal(signal.SIGINT)
        return snapshot(self)

    with monkeypatch.context() as patched:
        patched.setattr(Hub, "snapshot", interrupt)
        result = run(REPO)
    assert result.exit_code == 130
    assert "same command again to resume" in result.stderr
    assert hub.fetched == []
    assert run(REPO).exit_code == 0
