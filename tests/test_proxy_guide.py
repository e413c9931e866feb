"""nginx and Caddy as docs/guides/proxy.md has them; skipped where they are not installed."""

import json
import logging
import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from enginebay.config.schema import Config
from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen_unix
from tests.chromium import ARGUMENTS, CHROMIUM
from tests.page.support import Gated, answered, say
from tests.proxies import GUIDE, PROXIES, proxy
from tests.support import Server, plugins_with, scripted, scripted_config, serve, served_on

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "a-key-of-a-friend"
PIECES = ("One", " two", " three")
USER = [{"role": "user", "content": "Count"}]
TRUSTING_ALL = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING_ALL.check_hostname = False
TRUSTING_ALL.verify_mode = ssl.CERT_NONE


def need(name: str) -> None:
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed; on Debian and Ubuntu `apt install {name}` does that")


@dataclass
class Proxied:
    """A server behind a proxy; `http` asks the proxy, from the address 127.0.0.7, with a key."""

    server: Server
    url: str
    prefix: str
    http: httpx2.Client
    script: Gated

    def stream(self, path: str, body: dict[str, Any]) -> Any:
        return self.http.stream("POST", path, json=body)


@pytest.fixture(
    scope="module",
    params=[(name, way) for name in PROXIES for way in ("kept", "stripped", "alone")],
    ids=lambda param: "-".join(param),
)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    name, way = request.param
    need(name)
    folder = tmp_path_factory.mktemp(name)
    script = Gated(PIECES)
    server = {
        "root_path": None if way == "alone" else "/llm",
        "trusted_proxies": ["127.0.0.1"],
        "api_keys": [KEY],
        "ping_interval": 0.05,
        "keys_file": str(folder / "keys.yml"),
    }
    model = {"name": "scripted", "backend": "scripted", "path": "."}
    config = Config.model_validate({"models": [model], "server": server})
    with ExitStack() as stack:
        plugins = plugins_with(scripted=scripted(script, context_length=10**9))
        behind = stack.enter_context(serve(config, plugins))
        upstream = behind.url.removeprefix("http://")
        prefix = "" if way == "alone" else "/llm"
        url = stack.enter_context(proxy(name, folder, upstream, way)) + prefix
        transport = httpx2.HTTPTransport(verify=TRUSTING_ALL, local_address="127.0.0.7")
        headers = {"Authorization": f"Bearer {KEY}"}
        http = httpx2.Client(base_url=url, transport=transport, headers=headers, timeout=60)
        yield Proxied(behind, url, prefix, stack.enter_context(http), script)


def test_page_docs_and_api_below_the_path(proxied: Proxied) -> None:
    # OPS-4
    bare = proxied.http.get(proxied.url)
    if proxied.prefix:
        assert bare.is_redirect
        assert bare.url.join(bare.headers["location"]) == f"{proxied.url}/"
    html = proxied.http.get("/", headers={"Accept": "text/html"})
    assert "<title>Enginebay</title>" in html.text
    docs = proxied.http.get("/docs")
    for source in (html, docs):
        own = re.findall(r'(?:src|href)="([^"#]+)"', source.text)
        assert len(own) > 3
        for link in own:
            assert proxied.http.get(source.url.join(link)).status_code == 200, link
    slash = proxied.http.get("/docs/")
    assert slash.url.join(slash.headers["location"]) == f"{proxied.url}/docs"
    assert proxied.http.get("/openapi.json").json().get("servers", []) == servers(proxied)
    api = proxied.http.get("/.well-known/serviceinfo").json()["api"]["openai"]
    assert api["documentation"] == f"{proxied.prefix}/docs"
    assert [each["id"] for each in proxied.http.get("/v1/models").json()["data"]] == ["scripted"]
    missing = proxied.http.get("/api/none")
    assert missing.json() == {"error": "there is no route GET /api/none"}, "as Ollama's errors are"


def servers(proxied: Proxied) -> list[dict[str, str]]:
    return [{"url": proxied.prefix}] if proxied.prefix else []


def test_tokens_come_one_by_one(proxied: Proxied) -> None:
    """The next one is let go only when the client has got the one before."""
    body = {"messages": USER, "stream": True, "model": "scripted"}
    seen = []
    with proxied.stream("/v1/chat/completions", body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        for _ in PIECES:
            proxied.script.go_on()
            for line in lines:
                [choice] = json.loads(line[6:])["choices"]
                if choice["delta"].get("content"):
                    seen.append(choice["delta"]["content"])
                    break
    assert seen == list(PIECES)


def test_lines_of_ollama_come_one_by_one(proxied: Proxied) -> None:
    seen = []
    proxied.script.go_on()
    with proxied.stream("/api/chat", {"messages": USER, "model": "scripted"}) as answer:
        for line in answer.iter_lines():
            seen.append(json.loads(line)["message"]["content"])
            if len(seen) == len(PIECES):
                break
            proxied.script.go_on()
    assert seen == list(PIECES)


def test_pings_come_through_and_a_client_that_leaves_ends_its_request(proxied: Proxied) -> None:
    proxied.script.go_on()
    body = {"messages": USER, "stream": True}
    with proxied.stream("/v1/chat/completions", body) as answer:
        lines = answer.iter_lines()
        assert any(line.startswith(":") for line in lines)
    assert proxied.script.closed.wait(60)


def test_large_bodies(proxied: Proxied) -> None:
    """nginx's own limit would be 1 MiB."""
    body = {"text": "a" * 3_000_000, "model": "scripted"}
    answer = proxied.http.post("/v1/token/encode", json=body)
    assert answer.json()["length"] == 3_000_000
    body["text"] *= 11
    refused = proxied.http.post("/v1/token/encode", json=body)
    assert refused.status_code == 413
    assert "the body is larger than 32000000 bytes" in refused.json()["error"]["message"]


def test_who_asks(proxied: Proxied, caplog: pytest.LogCaptureFixture) -> None:
    """The proxy says who the client is, whatever that says of itself."""
    forged = {
        "X-Forwarded-For": "8.8.8.8",
        "X-Forwarded-Host": "localhost",
        "Forwarded": "for=8.8.8.8;host=localhost",
    }
    with caplog.at_level(logging.INFO, "enginebay.access"):
        for headers in ({}, forged):
            assert proxied.http.get("/v1/models", headers=headers).status_code == 200
        proxied.server.settle()
    [*clients] = [getattr(each, "client", "") for each in caplog.records]
    assert clients == ["127.0.0.7"] * 2
    assert proxied.http.get("/v1/models", headers={"Authorization": ""}).status_code == 401


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("way", ["kept", "stripped by unix"])
def test_by_a_unix_socket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, way: str
) -> None:
    # OPS-3
    need(name)
    assert "`proxy_pass http://unix:/run/enginebay/http.sock;`" in GUIDE
    assert "`reverse_proxy unix//run/enginebay/http.sock`" in GUIDE
    settings = {"root_path": "/llm", "trusted_proxies": ["unix"], "api_keys": [KEY]}
    app = create_app(scripted_config(server=settings), plugins_with(scripted=scripted(PIECES)))

    path = tmp_path / "http.sock"
    with (
        listen_unix(path) as listening,
        served_on(listening, app),
        proxy(name, tmp_path, f"unix:{path}", way) as url,
        caplog.at_level(logging.INFO, "enginebay.access"),
    ):
        body = {"messages": USER}
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx2.post(
            f"{url}/llm/v1/chat/completions", json=body, headers=headers, verify=TRUSTING_ALL
        )
    assert answer.json()["choices"][0]["message"]["content"] == "".join(PIECES)
    assert getattr(caplog.records[-1], "client", "") == "127.0.0.1"


@pytest.fixture
def page(proxied: Proxied) -> "Iterator[Page]":
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = browser.new_context(ignore_https_errors=True)
        context.set_default_timeout(20_000)
        yield context.new_page()
        browser.close()


@pytest.mark.thorough
def test_the_page_in_a_browser(proxied: Proxied, page: "Page") -> None:
    wrong: list[str] = []
    page.on("response", lambda answer: answer.status >= 404 and wrong.append(answer.url))
    files = "/page/", "/docs/"  # the end of a stream is not waited for
    page.on("requestfailed", lambda it: any(map(it.url.count, files)) and wrong.append(it.url))
    page.goto(proxied.url)
    assert page.url == f"{proxied.url}/"
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill(KEY)
    dialog.get_by_role("button", name="Use key").click()
    page.locator(".card").first.wait_for(state="attached")
    proxied.script.go_on(len(PIECES))
    say(page, "Count")
    assert "One two three" in answered(page).inner_text()
    page.goto(f"{proxied.url}/docs")
    page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()
    assert page.locator(".servers option").first.inner_text() == proxied.url
    assert wrong == []
