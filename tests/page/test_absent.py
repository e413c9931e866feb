"""A server without the page, a page without what it can show, and `/` for who is no browser."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from enginebay.plugins import WINGS, Plugins, name_of
from tests.conftest import ServeScripted
from tests.page.support import answered, open_page, say
from tests.page.test_files import AS_BROWSER
from tests.support import Server, scripted, scripted_config, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page


def plugins_without(*blocked: str) -> Plugins:
    plugins = Plugins(blocked=blocked)
    plugins.backends("scripted", scripted(["ok"]))
    return plugins


@pytest.fixture(params=["not installed", "blocked"])
def pageless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with keys, which has neither the page nor an API with a greeting."""
    blocked = ["ollama"]
    if request.param == "blocked":
        blocked.append("page")
    else:
        monkeypatch.setitem(sys.modules, "enginebay_page", None)
    with serve(scripted_config(server={"api_keys": ["one"]}), plugins_without(*blocked)) as server:
        yield server


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/assets/swagger-ui.css", "/page/app.js"])
def test_a_server_without_it(pageless: Server, path: str) -> None:
    answer = pageless.http.get(path, headers={**AS_BROWSER, "X-API-Key": "one"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["message"] == f"there is no route GET {path}"
    assert error["type"] == "invalid_request_error"
    without_key = pageless.http.get(path, headers=AS_BROWSER)
    assert without_key.status_code == (404 if path == "/" else 401)


def test_its_apis_are_there(pageless: Server) -> None:
    client = pageless.openai.with_options(api_key="one")
    chat: Any = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}]
    )
    assert chat.choices[0].message.content == "ok"
    assert "/v1/chat/completions" in pageless.http.get("/openapi.json").json()["paths"]
    about = pageless.http.get("/.well-known/serviceinfo").json()["api"]["openai"]
    assert about["documentation"] == "/openapi.json"


@pytest.mark.parametrize("headers", [{}, AS_BROWSER])
def test_without_it_an_api_still_greets(headers: dict[str, str]) -> None:
    with serve(scripted_config(), plugins_without("page")) as server:
        for method in ("GET", "HEAD"):
            answer = server.http.request(method, "/", headers=headers)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/plain")
        assert server.http.get("/", headers=headers).text == "Ollama is running"
        assert server.http.post("/", headers=headers).status_code == 405


def test_docs_without_their_files(
    serve_scripted: ServeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi_offline", None)
    server = serve_scripted(["ok"])
    for path in ("/docs", "/docs/assets/swagger-ui.css"):
        answer = server.http.get(path, headers=AS_BROWSER)
        assert answer.status_code == 404
        assert "pip install 'enginebay[page]'" in answer.json()["error"]["message"]
    assert server.http.get("/", headers=AS_BROWSER).text.startswith("<!doctype html>")
    monkeypatch.undo()
    assert server.http.get("/docs").status_code == 200


def test_it_needs_no_other_wing(page: "Page") -> None:
    """What is not there is not shown, and no script complains."""
    blocked = [name_of(wing) for wing in WINGS if wing != "enginebay_page"]
    errors: list[str] = []
    page.on("console", lambda said: said.type == "error" and errors.append(said.location["url"]))
    with serve(scripted_config(), plugins_without(*blocked)) as server:
        open_page(page, server)
        say(page, "hi")
        assert answered(page).locator(".said").inner_text() == "ok"
        with page.expect_response("**/v1/cluster"):
            page.get_by_role("link", name="Models", exact=True).click()
        page.locator("#all-models .card").wait_for()
        assert not page.locator("#cluster").is_visible()
        page.get_by_role("link", name="Usage").click()
        page.locator("#usage").wait_for()
        assert set(errors) <= {f"{server.url}/v1/cluster"}, "the browser's note of a 404"
