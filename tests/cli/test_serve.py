"""`enginebay serve` as a process."""

import os
import re
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import StartServing

CONFIG = """\
server:
  port: 0
  api_keys: [one, two]
models:
  - name: good
    backend: scripted
    path: .
  - name: free
    backend: scripted
    path: .
  - name: broken
    backend: failing
    path: .
"""
STUBBORN = """
import asyncio, itertools

from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl


class Stubborn(EngineBackend):
    stuck = STUCK

    async def close(self):
        print("closing", flush=True)
        if self.stuck:
            self.stuck = False
            await asyncio.Event().wait()
        await super().close()


@hookimpl
def register_backends(register):
    endless = lambda prompt, index: itertools.repeat("a")
    engine = lambda: ScriptedEngine(endless, context_length=10**9)
    register("stubborn", lambda settings: Stubborn(engine))
"""
posix = pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")


@posix
@pytest.mark.usefixtures("plugin")
def test_serve(start_serving: StartServing) -> None:
    """Plain lines when nobody sits at a terminal; Ctrl-C is a normal end."""
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    serving = start_serving()
    keys = Path("keys.yml").absolute()
    assert serving.lines_until("NAME is one of") == [
        f"New keys are stored in {keys}, as hashes.",
        "Keys are shown only on a terminal; `enginebay keys rotate NAME` creates new",
        "ones and prints them. NAME is one of: user, admin",
    ]
    lines = serving.lines_until("Model +broken")
    url = re.search(r"http://127\.0\.0\.1:\d+", lines[0])
    assert url
    assert re.fullmatch(rf"Enginebay \S+ listens on {url[0]}; Ctrl-C stops it", lines[0])
    assert lines[1:] == [
        f"OpenAI URL  {url[0]}/v1",
        f"Page        {url[0]}",
        f"API docs    {url[0]}/docs",
        f"API keys    needed for everything; 4 known (1 admin), {keys} and config.yml line 3",
        "Model       good: scripted, context 4096 tokens, reasoning think, tools none",
        "Model       free: scripted, context 4096 tokens, reasoning think, tools none, no "
        "structured output",
        "Model       broken: failed: out of memory; take a smaller model",
    ]
    assert "good: warming up\n" in serving.log
    headers = {"Authorization": "Bearer two"}
    with httpx2.Client(base_url=url[0], headers=headers) as http:
        models = http.get("/v1/models").json()["data"]
    assert [model["state"] for model in models] == ["ready", "ready", "failed"]
    assert serving.interrupt() == 0
    assert "GET /v1/models 200 in " in serving.log
    assert "Traceback" not in serving.log


@posix
@pytest.mark.usefixtures("plugin")
def test_a_page_that_is_blocked_is_not_announced(start_serving: StartServing) -> None:
    Path("config.yml").write_text(CONFIG + "plugins: {blocked: [page]}\n", encoding="utf-8")
    lines = start_serving().lines_until("Model +broken")
    assert any(line.startswith("OpenAI URL") for line in lines)
    assert not [line for line in lines if line.startswith(("Page", "API docs"))]


@posix
@pytest.mark.parametrize("stuck", [False, True])
def test_ctrl_c_again(start_serving: StartServing, stuck: bool) -> None:
    """The second ends what runs, the third does not wait even for that; no traceback either way."""
    Path("plugins").mkdir()
    plugin = STUBBORN.replace("STUCK", str(stuck))
    Path("plugins/stubborn.py").write_text(plugin, encoding="utf-8")
    model = "{name: m, backend: stubborn, path: .}"
    Path("config.yml").write_text(f"{{server: {{port: 0}}, models: [{model}]}}", encoding="utf-8")
    serving = start_serving()
    url = re.search(r"http://127\.0\.0\.1:\d+", "".join(serving.lines_until("Model")))
    assert url
    body = {"prompt": "x", "stream": True}
    with httpx2.stream("POST", f"{url[0]}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        serving.process.send_signal(signal.SIGINT)
        until_nobody_listens(url[0])
        serving.process.send_signal(signal.SIGINT)
        serving.lines_until("closing")
        if stuck:
            assert serving.interrupt() == 0
        else:
            events = [line for line in lines if line]
            assert events[-1] == "data: [DONE]"
            assert '"abort"' in events[-2]
            assert serving.process.wait(60) == 0
    assert "Traceback" not in serving.log


def until_nobody_listens(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=60).close()
        except ConnectionError:
            return


@posix
@pytest.mark.parametrize("level", ["warning", "debug"])
def test_flags_and_no_models(start_serving: StartServing, level: str) -> None:
    Path("other.yml").write_text("server: {host: 1.1.1.1, port: 1}", encoding="utf-8")
    serving = start_serving(
        *("--config", "other.yml", "--host", "localhost", "--port", "0", "--log-level", level)
    )
    serving.lines_until("NAME is one of")
    lines = serving.lines_until("Model")
    assert lines[0].startswith("Enginebay")
    assert " http://localhost:" in lines[0]
    assert lines[4:] == [
        "API keys    needed for admin routes only; 1 known (1 admin), "
        f"{Path('keys.yml').absolute()}",
        f"Model       none; put one into {Path('models').absolute()}, or add one under "
        "`models` in other.yml",
    ]
    url = lines[0].split()[4].rstrip(";")
    assert httpx2.get(f"{url}/v1/models").json()["data"] == []
    assert serving.interrupt() == 0
    assert ("GET /v1/models 200" in serving.log) is (level == "debug")


def test_a_port_that_is_taken(start_serving: StartServing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        Path("config.yml").write_text(f"server:\n  port: {port}\n", encoding="utf-8")
        serving = start_serving()
        assert serving.process.wait(60) == 1
    assert serving.log == (
        f"port {port} is already in use (set in config.yml line 2): stop the program that listens "
        "there, or choose another port with --port\n"
    )


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("no.such.host.invalid", "the host 'no.such.host.invalid' is not known"),
        ("203.0.113.7", "203.0.113.7 is not an address of this machine"),
    ],
)
def test_a_host_that_is_none(start_serving: StartServing, host: str, message: str) -> None:
    Path("config.yml").write_text("server:\n  port: 0\n", encoding="utf-8")
    serving = start_serving("--host", host)
    assert serving.process.wait(60) == 1
    assert serving.log.startswith(message)
    assert "Traceback" not in serving.log


def test_a_config_that_is_wrong(start_serving: StartServing) -> None:
    Path("config.yml").write_text("server:\n  prot: 5\n", encoding="utf-8")
    serving = start_serving("--port", "99999")
    assert serving.process.wait(60) == 2
    assert serving.log.splitlines() == [
        "--port: server.port: must be less than or equal to 65535, not 99999",
        "config.yml:2: server.prot: unknown key; did you mean 'port'?",
    ]


def test_a_model_that_cannot_be_found(start_serving: StartServing) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    serving = start_serving()
    assert serving.process.wait(60) == 2
    assert serving.log.startswith("config.yml:6: models[0].backend: no backend 'scripted' is inst")
