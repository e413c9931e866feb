"""`enginebay serve` on a unix socket and with TLS, and the commands that talk to it. OPS-2 OPS-3"""

import os
import re
import socket
import stat
from pathlib import Path

import httpx2
import pytest

from enginebay.config.schema import Config, ServerConfig
from enginebay.server.access.guard import needed
from enginebay.server.http.sockets import CannotListenError, listen_unix
from tests.cli.conftest import Run, StartServing
from tests.support import REPOSITORY

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    pytest.mark.skipif(os.name == "nt", reason="Windows has no unix sockets, nor Ctrl-C for one"),
]
CONFIG = """\
server:
  {settings}
models:
  - name: good
    backend: scripted
    path: .
    load: request
"""
PAIR = REPOSITORY / "tests" / "certificates"
TLS = f"tls_cert: {PAIR / 'first.pem'}\n  tls_key: {PAIR / 'first.key'}\n  port: 0\n  auth: none"


def write_config(settings: str) -> None:
    Path("config.yml").write_text(CONFIG.format(settings=settings), encoding="utf-8")


def test_a_unix_socket_and_commands_by_it(start_serving: StartServing, run: Run) -> None:
    write_config("unix_socket: run/http.sock")
    Path("run").mkdir()
    serving = start_serving()
    lines = serving.lines_until("Model +good")
    path = Path("run/http.sock").absolute()
    first = next(line for line in lines if line.startswith("Enginebay"))
    assert re.fullmatch(rf"Enginebay \S+ listens on {path}; Ctrl-C stops it", first)
    assert not [line for line in lines if "http:" in line]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    transport = httpx2.HTTPTransport(uds=str(path))
    with httpx2.Client(transport=transport, base_url="http://localhost") as http:
        assert http.get("/v1/models").status_code == 200, "as on loopback, without a key"
        assert http.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert http.post("/v1/models/good/unload").status_code == 401
    assert run("chat", "hi").stdout == "Hello, world\n"
    assert run("chat", "hi", "--url", f"unix:{path}").stdout == "Hello, world\n"
    assert "good" in run("models").output
    second = start_serving()
    assert second.process.wait(60) == 1
    assert f"another server listens on {path}" in second.log
    assert run("models").exit_code == 0
    assert serving.interrupt() == 0
    assert not path.exists()
    assert "unix GET /v1/models 200 in " in serving.log


def test_a_flag_that_has_no_effect(run: Run) -> None:
    write_config("unix_socket: http.sock")
    result = run("serve", "--port", "5001")
    assert result.exit_code == 2
    said = "--port has no effect: the server listens on a unix socket (config.yml line 2)"
    assert " ".join(result.output.split()) == said


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    with listen_unix(path, "group") as living:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(CannotListenError, match="another server listens on"):
            listen_unix(path)
        assert living.getsockname() == str(path)
        path.unlink()
        with listen_unix(path, "all"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            living.close()
            assert path.exists(), "it is another one's by now"
    assert not path.exists()


def test_one_whose_queue_is_full_lives(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(path))
        with pytest.raises(CannotListenError, match="another server listens on"):
            listen_unix(path)
        for each in waiting:
            each.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "is a file, not a socket: choose another"),
        ("folder", "is a file, not a socket"),
        ("link", "is a file, not a socket"),
        ("none/http.sock", "No such file or directory; choose another `server.unix_socket`"),
        ("x" * 120, "and a unix socket's path at most 10[37] on this system; choose a shorter"),
    ],
)
def test_places_where_no_socket_can_be(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CannotListenError, match=message):
        listen_unix(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({}, "admin"),
        ({"host": "0.0.0.0"}, "admin"),
        ({"unix_socket_access": "group"}, "required"),
        ({"unix_socket_access": "all"}, "required"),
        ({"second_port": 11434}, "admin"),
        ({"second_port": 11434, "host": "0.0.0.0"}, "required"),
        ({"trusted_proxies": ["unix"]}, "required"),
    ],
)
def test_who_needs_a_key_on_a_unix_socket(settings: dict[str, object], who: str) -> None:
    """Its owner is as good as whoever is on this machine; others are proxies' users."""
    server = ServerConfig.model_validate({"unix_socket": "http.sock", **settings})
    assert needed(Config(server=server).server) == who


def test_tls_and_commands_that_talk_to_it(start_serving: StartServing, run: Run) -> None:
    """The certificate of the config is believed, though nobody has signed it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write_config(TLS.replace("port: 0", f"port: {port}\n  second_port: 0"))
    serving = start_serving()
    lines = serving.lines_until("Model +good")
    urls = re.findall(r"https?://127\.0\.0\.1:\d+", "\n".join(lines))
    assert [url for url in urls if not url.startswith("https:")] == []
    assert urls[0] == f"https://127.0.0.1:{port}"
    assert run("chat", "hi").stdout == "Hello, world\n"
    assert "ready" in run("models", "load", "good").output
    assert "good" in run("models").output
    config = Path("config.yml").read_text(encoding="utf-8")
    Path("config.yml").write_text(config.partition("models:")[0], encoding="utf-8")
    assert run("models", "inspect", "good", "--memory").exit_code == 0, "the server has it"
    Path("config.yml").write_text(config, encoding="utf-8")
    ollama = next(line for line in lines if line.startswith("Second URL")).split()[-1]
    assert httpx2.get(f"{ollama}/api/version", verify=False).status_code == 200
    unknown = run("chat", "hi", "--url", urls[0])
    assert unknown.exit_code == 1, "without the config its certificate is not known"
    assert "certificate verify failed" in unknown.output
    Path("config.yml").write_text(
        Path("config.yml").read_text(encoding="utf-8").replace("first", "second"), encoding="utf-8"
    )
    assert run("models", "load", "good").exit_code == 1, "it is not that server's"
    assert serving.interrupt() == 0
    assert "Traceback" not in serving.log


def test_a_certificate_that_is_wrong(start_serving: StartServing, run: Run) -> None:
    write_config(TLS.replace("first.key", "second.key"))
    said = "config.yml:3: server.tls_key: the key in "
    assert run("config", "check").output.startswith(said)
    serving = start_serving()
    assert serving.process.wait(60) == 2
    assert serving.log.startswith(said)
    assert "warming up" not in serving.log, "before anything is loaded"


def test_a_certificate_that_has_expired(run: Run) -> None:
    write_config(TLS.replace("first.pem", "expired.pem"))
    done = run("config", "check")
    assert done.exit_code == 0
    assert "config.yml is valid" in done.stdout
    assert "warning: the certificate in " in done.stderr
    assert "expired.pem has expired on 2025-04-01 00:00 UTC" in done.stderr


def test_a_path_too_long_for_a_socket(start_serving: StartServing, run: Run) -> None:
    write_config(f"unix_socket: /tmp/{'x' * 120}")
    said = f"config.yml:2: server.unix_socket: /tmp/{'x' * 120} has 125 bytes, and a unix socket's"
    done = run("config", "check")
    assert (done.exit_code, done.stderr.startswith(said)) == (2, True)
    serving = start_serving()
    assert serving.process.wait(60) == 2
    assert serving.log.startswith(said)
