"""A server below a path and behind proxies: everything sees requests as if there were none."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay import RouteRegister, RouteRequest
from enginebay.server.access import keys_file
from enginebay.server.access.key_store import KeyStore
from tests.support import Server, plugins_with, scripted, scripted_config, serve

KEYED = {"Authorization": "Bearer key-of-anna"}
BOTH = ("", "/llm")
"""How paths begin behind a proxy that strips the path, and behind one that does not."""


async def told(request: RouteRequest) -> Any:
    return {"path": request.path}


def register(routes: RouteRegister) -> None:
    routes("GET", "/told/{name}", told, access="anyone")
    routes("POST", "/told/{name}", told, counted=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Below /llm, with one key, of one request a minute."""
    file = tmp_path_factory.mktemp("keys") / "keys.yml"
    keys_file.create(file, [keys_file.new_entry("anna", "key-of-anna", requests_per_minute=1)])
    settings = {"root_path": "/llm/", "keys_file": str(file), "metrics": "on"}
    plugins = plugins_with(scripted=scripted(["ok"]))
    register(plugins.routes)
    keys = KeyStore(file)
    with serve(scripted_config(server=settings), plugins, keys=keys) as server:
        yield server


@pytest.mark.wing("page")
@pytest.mark.parametrize("start", BOTH)
@pytest.mark.parametrize(
    "path", ["/", "/health", "/docs", "/openapi.json", "/page/app.js", "/told/me"]
)
def test_what_needs_no_key_needs_none_below_the_path(server: Server, start: str, path: str) -> None:
    # OPS-4
    assert server.http.get(f"{start}{path}").status_code == 200


@pytest.mark.parametrize("start", BOTH)
def test_everything_else_does(server: Server, start: str) -> None:
    for path in ("/v1/models", "/metrics", "/llm/v1/models", "/page", "/nothing"):
        assert server.http.get(f"{start}{path}").status_code == 401, path
    assert server.http.get(f"{start}/v1/models", headers=KEYED).status_code == 200


@pytest.mark.wing("messages", "ollama")
@pytest.mark.parametrize("start", BOTH)
def test_errors_have_the_form_of_the_path(server: Server, start: str) -> None:
    assert server.http.post(f"{start}/v1/messages", json={}).json()["type"] == "error"
    assert isinstance(server.http.post(f"{start}/api/chat", json={}).json()["error"], str)
    assert server.http.post(f"{start}/v1/nothing").json()["error"]["code"] == "invalid_api_key"
    missing = server.http.get(f"{start}/v1/nothing", headers=KEYED).json()["error"]["message"]
    assert missing == "there is no route GET /v1/nothing"


def test_only_the_path_itself_is_taken_off_and_only_once(server: Server) -> None:
    for path in ("/llmama/v1/models", "/llm/llm/v1/models", "/LLM/v1/models"):
        assert server.http.get(path, headers=KEYED).status_code == 404, path
    assert server.http.get("/%6clm/told/%C3%A4").json() == {"path": "/told/ä"}
    assert server.http.get("/llm//told/a", headers=KEYED).json() == {"path": "/told/a"}


@pytest.mark.wing("page")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_path_without_a_slash_leads_to_the_one_with_it(server: Server, method: str) -> None:
    answer = server.http.request(method, "/llm?a=b")
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/?a=b")


@pytest.mark.wing("page")
@pytest.mark.parametrize("start", BOTH)
@pytest.mark.parametrize("host", [{}, {"Host": "evil.example"}, {"Host": "evil.example:x"}])
def test_redirects_lead_below_the_path_and_name_no_host(
    server: Server, start: str, host: dict[str, str]
) -> None:
    answer = server.http.get(f"{start}/docs/?a=b", headers={**host, **KEYED})
    assert answer.headers["location"] == "/llm/docs?a=b"


@pytest.mark.parametrize("start", BOTH)
def test_what_is_exempt_from_limits_is_below_the_path_too(server: Server, start: str) -> None:
    for _ in range(3):
        body = {"text": "x", "model": "scripted"}
        answer = server.http.post(f"{start}/v1/token/encode", json=body, headers=KEYED)
        assert answer.status_code == 200
        assert server.http.post(f"{start}/told/a", headers=KEYED).status_code == 200


def test_metrics_and_the_log_have_paths_without_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "enginebay.access"):
        for start in BOTH:
            assert server.http.get(f"{start}/v1/version", headers=KEYED).status_code == 200
        server.settle()
        text = server.http.get("/llm/metrics", headers=KEYED).text
    assert {getattr(each, "path", "") for each in caplog.records} == {"/v1/version"}
    [line] = [line for line in text.splitlines() if 'route="/version"' in line]
    assert line.endswith(" 2.0")
    assert "/llm" not in text


@pytest.mark.wing("page")
def test_links_have_it(server: Server) -> None:
    for start in BOTH:
        schema = server.http.get(f"{start}/openapi.json").json()
        assert schema["servers"] == [{"url": "/llm"}]
        info = server.http.get(f"{start}/.well-known/serviceinfo").json()
        assert info["api"]["openai"]["documentation"] == "/llm/docs"
        assert info["software"]["homepage"].startswith("http")


@pytest.fixture(scope="module")
def believing() -> Iterator[Server]:
    """It trusts whoever comes from 127.0.0.1, and asks admins only for keys."""
    settings = {"trusted_proxies": ["127.0.0.1"], "auth": "admin", "allowed_hosts": ["llm.example"]}
    plugins = plugins_with(scripted=scripted(["ok"]))
    with serve(scripted_config(server=settings), plugins) as server:
        yield server


def client_of(record: logging.LogRecord) -> str:
    return str(getattr(record, "client", ""))


def test_the_log_has_the_address_that_a_trusted_proxy_names(
    believing: Server, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"X-Forwarded-For": "8.8.8.8, 192.0.2.7"}
    for asked, client in ((believing, "192.0.2.7"), (server, "127.0.0.1")):
        with caplog.at_level(logging.INFO, "enginebay.access"):
            asked.http.get("/v1/version", headers=headers)
            asked.settle()
        assert client_of(caplog.records[-1]) == client
        assert caplog.records[-1].message.startswith(f"{client} GET /v1/version ")


@pytest.mark.wing("page")
def test_a_prefix_that_a_trusted_proxy_names(believing: Server) -> None:
    """As Traefik does when it strips one."""
    headers = {"X-Forwarded-Prefix": "/models"}
    schema = believing.http.get("/openapi.json", headers=headers).json()
    assert schema["servers"] == [{"url": "/models"}]
    assert believing.http.get("/docs/", headers=headers).headers["location"] == "/models/docs"
    assert "servers" not in believing.http.get("/openapi.json").json()
    assert believing.http.get("/models/v1/models", headers=headers).status_code == 404, (
        "or rules of the proxy about paths could be got around with it"
    )


@pytest.mark.parametrize(
    ("host", "forwarded", "status"),
    [
        ("127.0.0.1", "llm.example", 200),
        ("127.0.0.1", "evil.example", 403),
        ("evil.example", "llm.example", 403),
        ("evil.example", "localhost", 403),
        ("llm.example", "", 200),
        ("llm.example", "evil.example", 403),
    ],
)
def test_a_made_up_host_opens_nothing(
    believing: Server, host: str, forwarded: str, status: int
) -> None:
    """Both must be allowed: of a proxy that passes one of them on, a page may send the other."""
    headers = {"Host": host} | ({"X-Forwarded-Host": forwarded} if forwarded else {})
    assert believing.http.get("/v1/models", headers=headers).status_code == status


def test_a_page_below_its_public_name_may_call(believing: Server) -> None:
    """Also where the proxy does not pass on `Host`, and the browser sends no `Sec-Fetch-Site`."""
    headers = {"Origin": "http://llm.example", "X-Forwarded-Host": "llm.example"}
    assert believing.http.get("/v1/models", headers=headers).status_code == 200
    headers["Origin"] = "http://evil.example"
    assert believing.http.get("/v1/models", headers=headers).status_code == 403


PASSED_ON = [
    {"X-Forwarded-For": "192.0.2.7"},
    {"X-Forwarded-Proto": "https"},
    {"X-Forwarded-Prefix": "/llm"},
    {"X-Forwarded-Port": "443"},
    {"Forwarded": "for=192.0.2.7"},
    {"X-Real-IP": "192.0.2.7"},
    {"Via": "1.1 caddy"},
    {"CF-Connecting-IP": "192.0.2.7"},
]


@pytest.mark.parametrize("headers", PASSED_ON, ids=str)
def test_who_comes_through_a_proxy_is_not_on_this_machine(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """A server on loopback without a word about a proxy: others come by it all the same."""
    file = tmp_path / "keys.yml"
    keys_file.create(file, [keys_file.new_entry("anna", "key-of-anna")])
    model = {"path": "/home/me/s3cret"}
    config = scripted_config(server={"keys_file": str(file)}, **model)
    plugins = plugins_with(scripted=scripted(["ok"]))
    with serve(config, plugins, keys=KeyStore(file)) as server:
        assert server.http.get("/v1/models").status_code == 200
        assert server.http.get("/metrics").status_code == 200
        for path in ("/v1/models", "/metrics"):
            refused = server.http.get(path, headers=headers)
            assert refused.status_code == 401, path
        message = server.http.get("/v1/models", headers=headers).json()["error"]["message"]
        assert "through a proxy unless the config sets `server.auth`" in message
        for path in ("/v1/models", "/metrics"):
            assert server.http.get(path, headers={**headers, **KEYED}).status_code == 200
    explicit = scripted_config(server={"keys_file": str(file), "auth": "admin"})
    with serve(explicit, plugins, keys=KeyStore(file)) as server:
        assert server.http.get("/v1/models", headers=headers).status_code == 200


def test_a_proxy_that_sends_no_header_of_its_own() -> None:
    """What nginx 1.22 makes of a request when it has only a `proxy_pass`."""
    plugins = plugins_with(scripted=scripted(["ok"]))
    keys = KeyStore(Path("none"))
    with serve(scripted_config(), plugins, keys=keys) as server:
        address = server.url.removeprefix("http://")
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"GET /v1/models HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
        assert server.http.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "settings", [{"root_path": "/llm"}, {"trusted_proxies": ["unix"]}], ids=str
)
def test_a_config_that_speaks_of_a_proxy_wants_keys(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Of everybody: nginx sends no header by which its requests could be told."""
    keys = KeyStore(tmp_path / "keys.yml")
    plugins = plugins_with(scripted=scripted(["ok"]))
    with serve(scripted_config(server=settings), plugins, keys=keys) as server:
        for path in ("/v1/models", "/metrics"):
            assert httpx2.get(f"{server.url}{path}").status_code == 401
