"""HTTPS without a proxy: certificates, new ones while the server runs, wrong ones. OPS-2"""

import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from shutil import copy
from typing import Any

import httpx2
import pytest

from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.server.app import create_app
from enginebay.server.http.certificate import Certificate, certificate_of
from enginebay.server.http.sockets import listen
from tests.page.support import Gated
from tests.support import REPOSITORY, plugins_with, scripted, scripted_config, served_on

PAIRS = REPOSITORY / "tests" / "certificates"
CHAIN, KEY, ENCRYPTED = PAIRS / "second.pem", PAIRS / "second.key", PAIRS / "encrypted.key"


def believing(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(PAIRS / f"{name}.pem"))


def lay(folder: Path, name: str) -> dict[str, str]:
    """Copy a pair into a folder; the settings for it."""
    copy(PAIRS / f"{name}.pem", folder / "cert.pem")
    copy(PAIRS / f"{name}.key", folder / "key.pem")
    return {"tls_cert": str(folder / "cert.pem"), "tls_key": str(folder / "key.pem")}


@contextmanager
def serving(script: Any = ("ok",), **settings: Any) -> Iterator[int]:
    """A server as `enginebay serve` runs it; its port."""
    config = scripted_config(server={"auth": "none", **settings})
    app = create_app(config, plugins_with(scripted=scripted(script)))

    with listen("127.0.0.1", 0) as listening, served_on(listening, app):
        yield listening.getsockname()[1]


def test_a_new_certificate_while_a_stream_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on, a half-replaced pair changes nothing but the log."""
    script = Gated(["a", "b", ""])
    caplog.set_level(logging.INFO, "enginebay.server.http.certificate")
    with serving(script, **lay(tmp_path, "first")) as port:
        url = f"https://localhost:{port}"
        body = {"prompt": "x", "stream": True}
        script.go_on()
        with (
            httpx2.Client(verify=believing("first"), timeout=60) as http,
            http.stream("POST", f"{url}/v1/completions", json=body) as answer,
        ):
            events = (line for line in answer.iter_lines() if line.startswith("data: "))
            assert '"a"' in next(events)
            copy(CHAIN, tmp_path / "cert.pem")
            first = believing("first")
            while "keeping the previous certificate: the key in " not in caplog.text:
                assert httpx2.get(f"{url}/health", verify=first, timeout=60).status_code == 200
            copy(KEY, tmp_path / "key.pem")
            while "cert.pem has changed: new connections get its certificate" not in caplog.text:
                pass
            assert httpx2.get(f"{url}/health", verify=believing("second")).status_code == 200
            with pytest.raises(httpx2.ConnectError):
                httpx2.get(f"{url}/health", verify=first)
            script.go_on()
            assert '"b"' in next(events)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_with_and_without_a_name(tmp_path: Path, address: str) -> None:
    """Clients that connect to an address do not say which name they want."""
    first = lay(tmp_path, "first")
    certificate = Certificate(*map(Path, first.values()))
    lay(tmp_path, "second")
    certificate.look()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        client = threading.Thread(target=shake_hands, args=(address, port))
        client.start()
        connection, _ = listening.accept()
        certificate.context.wrap_socket(connection, server_side=True).close()
        client.join()


def shake_hands(address: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        believing("second").wrap_socket(connection, server_hostname=address).close()


def test_plain_http_is_not_left_waiting(tmp_path: Path) -> None:
    with serving(**lay(tmp_path, "first")) as port:
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"http://127.0.0.1:{port}/health", timeout=60)
        health = httpx2.get(
            f"https://127.0.0.1:{port}/health", verify=believing("first"), timeout=60
        )
        assert health.status_code == 200


@pytest.mark.parametrize(
    ("settings", "line", "message"),
    [
        ({"tls_cert": "none.pem"}, 2, "none.pem cannot be read: No such file or directory"),
        ({"tls_cert": CHAIN, "tls_key": "no.key"}, 3, "no.key cannot be read: No such file"),
        ({"tls_cert": CHAIN}, 2, "second.pem has no private key in PEM format; name the file"),
        ({"tls_cert": KEY, "tls_key": KEY}, 2, "second.key has no certificate in PEM format"),
        ({"tls_cert": CHAIN, "tls_key": CHAIN}, 3, "second.pem has no private key in PEM format"),
        ({"tls_cert": CHAIN, "tls_key": PAIRS / "first.key"}, 3, "is not that of the certificate"),
        ({"tls_cert": CHAIN, "tls_key": ENCRYPTED}, 3, "is encrypted: set `server.tls_key_pass"),
        (
            {"tls_cert": CHAIN, "tls_key": ENCRYPTED, "tls_key_password": "open"},
            4,
            "is not the password of ",
        ),
        ({"tls_cert": "broken.pem"}, 2, "broken.pem is damaged"),
        ({"tls_cert": "."}, 2, "cannot be read: Is a directory"),
    ],
    ids=str,
)
def test_files_that_cannot_be_used(
    tmp_path: Path, settings: dict[str, object], line: int, message: str
) -> None:
    """Found before anything is loaded: the line, and what is wrong."""
    broken = f"{CHAIN.read_text()}{KEY.read_text()}".replace("B", "")
    (tmp_path / "broken.pem").write_text(re.sub("EGIN", "BEGIN", broken))
    lines = "".join(f"  {key}: {value}\n" for key, value in settings.items())
    (tmp_path / "config.yml").write_text(f"server:\n{lines}")
    config = load_config(tmp_path / "config.yml")
    with pytest.raises(ConfigError) as caught:
        certificate_of(config)
    [problem] = caught.value.problems
    assert problem.line == line
    assert message in problem.message


@pytest.mark.parametrize(
    ("day", "message"),
    [
        ("2024-12-31T23:59", "is valid from 2025-01-01 00:00 UTC on"),
        ("2025-01-01T00:00", None),
        ("2025-03-22T23:59", None),
        ("2025-03-23T00:01", "expires on 2025-04-01 00:00 UTC: renew it"),
        ("2025-03-31T23:59", "expires on 2025-04-01 00:00 UTC: renew it"),
        ("2025-04-01T00:00", "has expired on 2025-04-01 00:00 UTC: clients refuse it"),
    ],
)
def test_a_certificate_that_clients_refuse(day: str, message: str | None) -> None:
    certificate = Certificate(PAIRS / "expired.pem", PAIRS / "first.key")
    warning = certificate.warning(datetime.fromisoformat(f"{day}+00:00").timestamp())
    assert (message is None and warning is None) or (message and message in (warning or ""))


def test_soon_is_at_most_two_weeks() -> None:
    """However long a certificate was valid; years from 2050 on are written in another way."""
    ends = datetime.fromisoformat("2126-10-30T17:14:37+00:00").timestamp()
    certificate, day = Certificate(CHAIN, KEY), 24 * 60 * 60
    assert certificate.warning(ends - 14 * day - 1) is None
    assert "expires on 2126-10-30 17:14" in (certificate.warning(ends - 14 * day) or "")


def test_the_log_warns_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expired = {"tls_cert": str(PAIRS / "expired.pem"), "tls_key": str(PAIRS / "first.key")}
    with serving(**expired):
        assert "expired.pem has expired on 2025-04-01" in caplog.text
    caplog.clear()
    renewed = lay(tmp_path, "first")
    certificate = Certificate(*map(Path, renewed.values()))
    copy(PAIRS / "expired.pem", tmp_path / "cert.pem")
    certificate.look()
    assert "cert.pem has expired on 2025-04-01" in caplog.text


def test_a_key_with_a_password_and_a_pair_in_one_file(tmp_path: Path) -> None:
    Certificate(CHAIN, ENCRYPTED, "open-sesame")
    (tmp_path / "both.pem").write_bytes(CHAIN.read_bytes() + KEY.read_bytes())
    Certificate(tmp_path / "both.pem")
