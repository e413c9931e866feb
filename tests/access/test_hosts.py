"""Which names and pages a server without keys answers."""

import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import PermissionDeniedError
from enginebay.server.access.hosts import check_host, check_origin, is_loopback

NAME = socket.gethostname()
ALLOWED = ["llm.example", "*.tail1234.ts.net"]
GOOD = [
    "",  # HTTP/1.0
    "localhost",
    "LocalHost:5000",
    "127.0.0.1",
    "127.0.0.1:5000",
    "[::1]:5000",
    "192.168.1.7:80",
    "[fe80::1]",
    "127.0.0.1.",
    "localhost.:5000",
    "[::ffff:127.0.0.1]",
    "host.docker.internal",
    "Host.Docker.Internal:5000",
    NAME,
    f"{NAME}.",
    NAME.upper(),
    NAME.partition(".")[0],
    f"{NAME.partition('.')[0]}.local:5000",
    "llm.example",
    "LLM.example:443",
    "a.tail1234.ts.net",
    "chat.mine.example:5000",
]
BAD = [
    "evil.example",
    "evil.example:5000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "llm.example.evil.example",
    "xllm.example",
    "tail1234.ts.net",
    "evil.example#.local",
    "evil.example/.local",
    "a@evil.example",
    "[::1",
    ":5000",
    # SEC-8: names that somebody else may have in a local network, or on this machine
    "wpad",
    "nas",
    "evil.local",
    "evil.local.:5000",
    "EVIL.LOCAL",
    "evil.internal",
    "gateway.docker.internal",
    "box.home.arpa.",
    "evil.lan",
    "evil.localhost",
    f"{NAME}.evil.example",
    f"evil.{NAME}.local",
    # no names at all
    "evil.example@localhost",
    "localhost..",
    "localhost:80:80",
    "localhost:x",
    "localhost,evil.example",
    " localhost",
    "[localhost]",
    "[127.0.0.1",
    "::1",
    "::1:5000",
    "2130706433",
    "127.1",
    ".",
    "\xff",
]


def server(**settings: object) -> ServerConfig:
    return ServerConfig.model_validate(
        {"host": "chat.mine.example", "allowed_hosts": ALLOWED, **settings}
    )


@pytest.mark.parametrize("host", GOOD)
def test_names_of_the_server(host: str) -> None:
    check_host(host, server())


@pytest.mark.parametrize("host", BAD)
def test_names_of_others(host: str) -> None:
    with pytest.raises(PermissionDeniedError, match=r"server\.allowed_hosts"):
        check_host(host, server())
    check_host(host, server(allowed_hosts=["*"]))


@given(st.text(max_size=40))
def test_any_host(host: str) -> None:
    """It is judged, whatever it is."""
    with suppress(PermissionDeniedError):
        check_host(host, server())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:5000", "host": "127.0.0.1:5000"},
        {"origin": "https://llm.example", "host": "llm.example"},
        {
            "origin": "https://llm.example",
            "host": "127.0.0.1:5000",
            "sec-fetch-site": "same-origin",
        },
        {"origin": "https://ui.example", "host": "127.0.0.1:5000"},
        {"origin": "app://obsidian.md", "host": "localhost:5000"},
        {"origin": "chrome-extension://abc", "host": "localhost:5000"},
        {"origin": "file://", "host": "localhost", "sec-fetch-site": "none"},
    ],
)
def test_pages_that_may_call(headers: dict[str, str]) -> None:
    check_origin(encoded(headers), server(cors_origins=["https://ui.example"]))


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost:8000",
        "http://ui.example",
        "https://ui.example:444",
        "https://ui.example.evil.example",
        "null",
        "file://",
        "\xff",
    ],
)
def test_pages_that_may_not(origin: str) -> None:
    headers = encoded({"origin": origin, "host": "localhost:5000", "sec-fetch-site": "cross-site"})
    with pytest.raises(PermissionDeniedError, match=r"server\.cors_origins"):
        check_origin(headers, server(cors_origins=["https://ui.example"]))
    check_origin(headers, server(cors_origins=["*"]))


def test_images_and_links_of_other_sites() -> None:
    """They have no `Origin`; most browsers say all the same where they come from."""
    for site in ("none", "same-origin", "same-site"):
        check_origin(encoded({"host": "localhost:5000", "sec-fetch-site": site}), server())
    other = encoded({"host": "localhost:5000", "sec-fetch-site": "cross-site"})
    with pytest.raises(PermissionDeniedError, match="another site"):
        check_origin(other, server(cors_origins=["https://ui.example"]))
    check_origin(other, server(cors_origins=["*"]))


def encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("a.localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.7", False),
        ("nas", False),
        ("localhost.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
