"""A server that is stopped tells the clients it still has."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay import ModelInfo
from enginebay.server.app import create_app
from enginebay.server.http import uvicorn_server as server
from enginebay.server.http.sockets import listen
from tests.cli.conftest import StartServing
from tests.cli.test_serve import until_nobody_listens
from tests.held import Held
from tests.support import plugins_with, scripted_config

TEXT = "/v1/completions"
ENDLESS = """
import itertools

from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl


@hookimpl
def register_backends(register):
    endless = lambda prompt, index: itertools.repeat("a")
    engine = lambda: ScriptedEngine(endless, context_length=10**9)
    register("endless", lambda settings: EngineBackend(engine))
"""
CONFIG = """\
server:
  port: 0
  shutdown_timeout: TIMEOUT
models:
  - name: endless
    backend: endless
    path: .
"""
posix = pytest.mark.skipif(os.name == "nt", reason="Windows cannot send signals to one process")


class Slow(Held):
    """A model whose load takes for ever."""

    async def start(self) -> ModelInfo:
        await asyncio.Event().wait()
        return await super().start()


class Stopping:
    """A server in this process that is about to be stopped."""

    def __init__(self, app: Any, running: server.Server, http: httpx2.Client) -> None:
        self.app = app
        self.server = running
        self.http = http
        self.threads = ThreadPoolExecutor()

    def ask(self, prompt: str, *, stream: bool = False) -> Any:
        return self.threads.submit(
            httpx2.post,
            f"{self.http.base_url}{TEXT}",
            json={"prompt": prompt, "stream": stream},
            timeout=60,
        )

    def until_states(self, *states: str) -> None:
        requests = self.app.state.services.serving.requests
        while sorted(r.state for r in requests if r.asks) != sorted(states):
            pass


@contextmanager
def stopping(held: Held, timeout: float) -> Iterator[Stopping]:
    config = scripted_config(server={"shutdown_timeout": timeout, "auth": "none"}, max_running=2)
    slow = {"name": "slow", "backend": "slow", "load": "command"}
    config.models.append(config.models[0].model_copy(update=slow))
    app = create_app(config, plugins_with(scripted=lambda _: held, slow=lambda _: Slow()))
    running = server.Server(app, "error", nothing)

    with (
        listen("127.0.0.1", 0) as listening,
        httpx2.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as http,
        running.in_thread(listening),
    ):
        while http.get("/health").status_code != 200:
            pass
        at = Stopping(app, running, http)
        with at.threads:
            yield at


async def nothing() -> None:
    """When started, do nothing."""


@pytest.mark.parametrize("hurried", [False, True])
def test_what_waits_ends_at_once_and_what_runs_after_its_time(hurried: bool) -> None:
    # WEB-10 WEB-11
    with stopping(Held(), timeout=600 if hurried else 1) as at:
        whole, stream = at.ask("whole"), at.ask("stream", stream=True)
        at.until_states("running", "running")
        waiting = [at.ask("waits"), at.ask("waits", stream=True)]
        at.until_states("queued", "queued", "running", "running")
        at.server.handle_exit(signal.SIGTERM, None)
        for answer in waiting:
            response = answer.result()
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json()["error"]["code"] == "server_stopping"
        with pytest.raises(httpx2.ConnectError):
            httpx2.post(f"{at.http.base_url}{TEXT}", json={"prompt": "late"})
        if hurried:
            at.server.handle_exit(signal.SIGINT, None)
        [choice] = whole.result().json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("a", "abort")
        events = [line for line in stream.result().text.splitlines() if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "abort"


def test_what_ends_in_time_is_whole() -> None:
    held = Held()
    with stopping(held, timeout=600) as at:
        answer = at.ask("x")
        at.until_states("running")
        at.server.handle_exit(signal.SIGTERM, None)
        until_nobody_listens(str(at.http.base_url).rstrip("/"))
        held.loop.call_soon_threadsafe(held.let_go, "x")
        [choice] = answer.result().json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_for_a_load_is_told(stream: bool) -> None:
    """It is no answer that has to be finished, so it does not use up the time."""
    with stopping(Held(), timeout=600) as at:
        url = f"{at.http.base_url}/v1/models/slow/load"
        answer = at.threads.submit(httpx2.post, url, json={"stream": stream}, timeout=60)
        while at.app.state.services.models.find("slow").progress.stage != "starting":
            pass
        at.server.handle_exit(signal.SIGTERM, None)
        response = answer.result()
        assert response.status_code == (200 if stream else 503)
        told = response.text.split("data: ")[-1]
        assert json.loads(told)["error"]["code"] == "server_stopping"


@posix
def test_sigterm_ends_with_exit_code_0(start_serving: StartServing) -> None:
    Path("plugins").mkdir()
    Path("plugins/endless.py").write_text(ENDLESS, encoding="utf-8")
    Path("config.yml").write_text(CONFIG.replace("TIMEOUT", "0"), encoding="utf-8")
    serving = start_serving()
    url = serving.lines_until("OpenAI URL")[-1].split()[-1]
    body = {"prompt": "x", "stream": True}
    with httpx2.stream("POST", f"{url}/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        serving.process.send_signal(signal.SIGTERM)
        events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "abort"
    assert serving.process.wait(60) == 0
    assert "Traceback" not in serving.log
