"""SEC-9: `/openapi.json` takes seconds to make, but not from others."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI

from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen
from tests.bystander import bystander, paused
from tests.support import plugins_with, scripted, scripted_config, served_on


def test_making_it_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who ask for it share one, also if one of them leaves."""
    with (
        bystander(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as watching,
        paused(monkeypatch, FastAPI, "openapi") as pause,
        ThreadPoolExecutor() as threads,
    ):
        asked = [threads.submit(watching.server.http.get, "/openapi.json") for _ in range(3)]
        pause.entered()
        watching.advance(5)
        pause.go_on()
        documents = [each.result(60).json() for each in asked]
    assert documents[0]["info"]["title"] == "Enginebay"
    assert documents[1:] == documents[:1] * 2


def test_the_server_makes_it_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(scripted_config(), plugins_with(scripted=scripted(["ok"])))
    with (
        listen("127.0.0.1", 0) as listening,
        paused(monkeypatch, FastAPI, "openapi") as pause,
        served_on(listening, app),
    ):
        pause.entered()
        pause.go_on()
