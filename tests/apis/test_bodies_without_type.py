"""Bodies whose type nobody has said, or `curl -d` has said wrong."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Server, plugins_with, scripted, scripted_config, serve

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BODIES: dict[str, Any] = {
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}], "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/show": {},
    "/api/v1/generate": {"prompt": "hi"},
    "/api/extra/tokencount": {"prompt": "hi"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = scripted_config(server={"auth": "admin"})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("headers", [FORM, {"Content-Type": "text/plain"}, {}], ids=str)
def test_they_are_read_as_json(server: Server, path: str, headers: dict[str, str]) -> None:
    content = json.dumps({**BODIES[path], "model": "scripted"}).encode()
    answer = server.http.post(path, content=content, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", BODIES)
def test_not_from_the_web_pages_of_others(server: Server, path: str) -> None:
    """Browsers let pages send forms without asking."""
    content = json.dumps({**BODIES[path], "model": "scripted"}).encode()
    headers = {**FORM, "Origin": "https://elsewhere.example"}
    answer = server.http.post(path, content=content, headers=headers)
    assert answer.status_code == 403
