"""`server.second_port`: a second port for clients of Ollama."""

import os
import re
import socket
from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import Run, StartServing

pytestmark = pytest.mark.usefixtures("plugin")
CONFIG = """\
server:
  port: 0
  second_port: {port}
  auth: none
  apis: [{apis}]
models:
  - name: good
    backend: scripted
    path: .
"""


def write_config(port: int, apis: str = "ollama") -> None:
    Path("config.yml").write_text(CONFIG.format(port=port, apis=apis), encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
def test_both_ports_are_the_same_server(start_serving: StartServing) -> None:
    write_config(0)
    serving = start_serving()
    lines = serving.lines_until("Model +good")
    urls = dict(re.findall(r"(OpenAI|Second) URL +(http://127\.0\.0\.1:\d+)", "\n".join(lines)))
    assert len(set(urls.values())) == 2
    for url in urls.values():
        with httpx2.Client(base_url=url) as http:
            assert http.get("/").text == "Ollama is running"
            assert [each["name"] for each in http.get("/api/tags").json()["models"]] == ["good"]
            assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["good"]
    assert serving.interrupt() == 0
    assert "Traceback" not in serving.log


def test_the_old_name_of_the_key(run: Run) -> None:
    write_config(0)
    config = Path("config.yml").read_text(encoding="utf-8").replace("second_port", "ollama_port")
    Path("config.yml").write_text(config, encoding="utf-8")
    result = run("config", "check")
    text = " ".join(result.output.split())
    assert result.exit_code == 0, text
    assert "config.yml:3: server.ollama_port: this key is now `server.second_port`" in text
    assert "second_port: 0" in run("config", "show").stdout
    Path("config.yml").write_text(config.replace("ollama_port: 0", "ollama_port: -1"), "utf-8")
    result = run("config", "check")
    assert result.exit_code == 2
    assert "config.yml:3: server.ollama_port: " in " ".join(result.output.split())


def test_an_api_that_there_is_not(run: Run) -> None:
    write_config(0, apis="messages, olama")
    result = run("serve")
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert text == "config.yml:5: server.apis[1]: no API 'olama'; did you mean 'ollama'?"


def test_a_port_that_is_taken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_config(port)
        result = run("serve")
    assert result.exit_code != 0
    text = " ".join(result.output.split())
    assert f"port {port} is already in use (set in config.yml line 3)" in text
    assert "server.second_port" in text
