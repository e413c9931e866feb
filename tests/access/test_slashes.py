"""WIRE-4: a slash too many in a path means nothing, and opens nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from enginebay import RouteRequest
from tests.support import Server, plugins_with, scripted, scripted_config, serve

KEY = "a-key-that-is-long-enough"
SENT = {"Authorization": f"Bearer {KEY}"}


async def told(request: RouteRequest) -> Any:
    return {"path": request.path}


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["ok"]))
    plugins.routes("GET", "/told/{rest:path}", told)
    plugins.routes("GET", "/folder/", told)
    plugins.routes("GET", "/open", told, access="anyone")
    with serve(scripted_config(server={"api_keys": [KEY]}), plugins) as running:
        yield running


def get(server: Server, path: str, **headers: str) -> Any:
    # httpx would join what begins with two slashes as if it had a host.
    return server.http.get(f"{server.url}{path}", headers=headers)


@pytest.mark.parametrize(
    "path", ["/v1/models/", "/v1//models", "//v1///models//", "/v1/%2Fmodels", "/models/"]
)
def test_the_list_of_models(server: Server, path: str) -> None:
    assert get(server, path, **SENT).json() == get(server, "/v1/models", **SENT).json()
    assert get(server, path).status_code == 401


@pytest.mark.wing("page")
def test_other_routes(server: Server) -> None:
    assert get(server, "/v1//models//scripted/", **SENT).json()["id"] == "scripted"
    body = {"prompt": "a", "max_tokens": 9}
    for path in ("/v1//completions", "//v1/completions", "//completions"):
        answer = server.http.post(f"{server.url}{path}", json=body, headers=SENT)
        assert answer.json()["choices"][0]["text"] == "ok"
    assert get(server, "//page//app.js").status_code == 200
    assert get(server, "//", Accept="text/html").status_code == 200
    assert get(server, "//docs/", **SENT).headers["location"] == "/docs"


@pytest.mark.parametrize("path", ["//v1/config", "/v1//reload", "//told/x"])
def test_no_rule_about_paths_is_passed_by(server: Server, path: str) -> None:
    assert get(server, path).status_code == 401
    assert server.http.post(f"{server.url}{path}").status_code == 401


def test_routes_of_plugins(server: Server) -> None:
    assert get(server, "//told//a//b", **SENT).json() == {"path": "/told/a/b"}
    assert get(server, "/folder//", **SENT).json() == {"path": "/folder/"}
    assert get(server, "//open").json() == {"path": "/open"}


def test_no_redirect_leads_elsewhere(server: Server) -> None:
    """`//host/…` in a `Location` would be another server."""
    answer = get(server, "//example.com/folder", **SENT)
    assert answer.status_code == 404


@pytest.mark.wing("messages")
def test_errors_and_limits_are_those_of_the_plain_path(server: Server) -> None:
    answer = server.http.post(f"{server.url}//v1//messages", content=b"x", headers=SENT)
    assert answer.json()["type"] == "error"


@pytest.mark.wing("page")
@pytest.mark.parametrize("path", ["/llm", "/llm/", "//llm//", "/llm//"])
def test_the_page_below_a_path(path: str) -> None:
    plugins = plugins_with(scripted=scripted(["ok"]))
    with serve(scripted_config(server={"root_path": "/llm"}), plugins) as server:
        page = server.http.get(
            f"{server.url}{path}", follow_redirects=True, headers={"Accept": "text/html"}
        )
        assert "<title>" in page.text
        assert get(server, f"{path}/v1//models/").json()["object"] == "list"
