"""A server that is stopped tells the clients it still has."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from core.app import create_app
from core.cli import server
from tests.support import plugins_with, scripted, scripted_config


async def nothing() -> None:
    """When started, do nothing."""


def test_running_requests_end_as_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE", 1.0)
    endless = scripted(lambda prompt, index: itertools.repeat("a"), context_length=10**9)
    app = create_app(scripted_config(), plugins_with(scripted=endless))
    body = {"prompt": "x", "stream": True}
    with (
        server.listen("127.0.0.1", 0) as listening,
        ThreadPoolExecutor() as threads,
        httpx2.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as http,
    ):
        running = server.Server(app, "error", nothing)
        with running.in_thread(listening):
            while http.get("/health").status_code != 200:
                pass
            with http.stream("POST", "/v1/completions", json=body, timeout=60) as response:
                lines = response.iter_lines()
                next(lines)
                whole = threads.submit(
                    httpx2.post, f"{http.base_url}/v1/completions", json={"prompt": "x"}, timeout=60
                )
                while len(app.state.models.all()[0].backend._streams) < 2:
                    pass
                running.should_exit = True
                events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "abort"  # WEB-10, WEB-11
    assert whole.result().status_code == 200
    [choice] = whole.result().json()["choices"]
    assert choice["finish_reason"] == "abort"
    assert set(choice["text"]) == {"a"}
