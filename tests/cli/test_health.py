"""`enginebay health`, which containers and service managers call; OPS-1."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from enginebay import Backend
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.errors import BackendUnavailableError
from tests.access.test_certificate import lay, serving
from tests.cli.conftest import Run
from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted, scripted_config, serve


def create_failing(settings: BackendSettings) -> Backend:
    raise BackendUnavailableError("it is broken")


@pytest.fixture(scope="module")
def failing() -> Iterator[Server]:
    """A server whose only model could not be loaded."""
    with serve(scripted_config(), plugins_with(scripted=create_failing)) as server:
        yield server


@pytest.mark.parametrize("options", [[], ["--live"], ["--ready"]])
def test_a_server_that_is_well(serve_scripted: ServeScripted, run: Run, options: list[str]) -> None:
    server = serve_scripted(["Hello"])
    result = run("health", "--url", server.url, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "healthy: ok\nscripted: ready\n"


@pytest.mark.parametrize("option", [None, "--ready"])
def test_a_model_that_failed(failing: Server, run: Run, option: str | None) -> None:
    result = run("health", "--url", f"{failing.url}/v1", *([option] if option else []))
    assert (result.exit_code, result.stdout) == (1, "unhealthy: failed\nscripted: failed\n")


def test_a_server_lives_whose_model_failed(failing: Server, run: Run) -> None:
    """A restart would not help it."""
    result = run("health", "--url", failing.url, "--live")
    assert (result.exit_code, result.stdout) == (0, "healthy: failed\nscripted: failed\n")


def test_a_key_is_not_needed_and_a_proxy_not_asked(run: Run) -> None:
    config = scripted_config(server={"api_keys": ["secret"]})
    with serve(config, plugins_with(scripted=scripted(["a"]))) as server:
        nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
        assert run("health", "--url", server.url, env=nowhere).exit_code == 0


def test_the_server_of_the_config(serve_scripted: ServeScripted, run: Run) -> None:
    """As in a container, which listens on all addresses."""
    port = serve_scripted(["Hello"]).url.rsplit(":", 1)[1]
    env = {"ENGINEBAY_SERVER__PORT": port, "ENGINEBAY_SERVER__HOST": "0.0.0.0"}
    Path("config.yml").write_text("server: {port: 1}\n", encoding="utf-8")
    assert run("health", env=env).exit_code == 0


def test_no_server(run: Run) -> None:
    result = run("health", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("nothing answers at http://127.0.0.1:9: ")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # by httpcore
def test_no_server_on_a_socket(run: Run, tmp_path: Path) -> None:
    where = f"unix:{tmp_path}/http.sock"
    assert run("health", "--url", where).stderr.startswith(f"nothing answers at {where}: ")
    gc.collect()


def test_a_certificate_that_is_named(run: Run, tmp_path: Path) -> None:
    """As the guide says of `--url`."""
    with serving(**lay(tmp_path, "first")) as port:
        url = f"https://127.0.0.1:{port}"
        refused = run("health", "--url", url)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        named = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        assert run("health", "--url", url, env=named).exit_code == 0


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"models": [1]}', b'{"models": {"a": 1}}', b'{"models": {}}']
)
def test_another_program(run: Run, body: bytes) -> None:
    with answering(body) as url:
        result = run("health", "--url", url)
    assert result.exit_code == 1
    assert result.stderr == f"what answers at {url} is not Enginebay: it has no /health\n"


def test_one_question_at_a_time(run: Run) -> None:
    result = run("health", "--live", "--ready")
    assert (result.exit_code, result.stderr) == (2, "name --live or --ready, not both\n")


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers everything with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
