"""What the page shows of the server."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from enginebay import Backend, EngineStats
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.types import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.page.support import Gated, answered, open_page, say
from tests.support import (
    InlineBackend,
    Server,
    engine_backend,
    plugins_with,
    scripted_config,
    serve,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Slow(InlineBackend):
    """A backend that is half loaded until it is told to go on."""

    def __init__(self, settings: BackendSettings, go_on: threading.Event) -> None:
        super().__init__(ScriptedEngine(["ok"], context_length=40960))
        self._settings = settings
        self._go_on = go_on

    async def start(self) -> ModelInfo:
        self._settings.report_progress("reading weights", 0.5)
        await asyncio.to_thread(self._go_on.wait)
        return await super().start()


@pytest.mark.thorough
def test_loading_shows_how_far_it_is(page: "Page") -> None:
    go_on = threading.Event()

    def slow(settings: BackendSettings) -> Backend:
        return Slow(settings, go_on)

    models = [{"name": "large", "backend": "slow", "path": "."}]
    with serve(
        Config.model_validate({"models": models}), plugins_with(slow=slow), wait=False
    ) as server:
        open_page(page, server)
        card = page.locator("#running .card")
        try:
            card.get_by_text("loading 50 %").wait_for()
            assert card.get_by_role("progressbar").get_attribute("value") == "0.5"
            assert "reading weights" in card.inner_text()
            assert page.locator("#health").inner_text() == "1 loading, 0 ready"
        finally:
            go_on.set()
        card.get_by_text("ready").wait_for()
        assert "40k context" in card.inner_text()
        assert not card.get_by_role("progressbar").is_visible()
        assert page.locator("#health").inner_text() == "1 ready"


@pytest.mark.thorough
def test_an_answer_that_waits_for_its_model_says_so(page: "Page") -> None:
    go_on = threading.Event()

    def slow(settings: BackendSettings) -> Backend:
        return Slow(settings, go_on)

    models = [{"name": "large", "backend": "slow", "path": ".", "load": "request"}]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(slow=slow), wait=False) as server:
        open_page(page, server)
        say(page, "Hi")
        answer = page.locator(".message.assistant")
        try:
            answer.get_by_text("Loading the model: 50 %").wait_for()
            page.locator("#requests li").get_by_text("loading").wait_for()
        finally:
            go_on.set()
        assert answered(page).locator(".said").inner_text() == "ok"
        assert page.locator(".message.assistant h3").inner_text().split() == ["Assistant", "large"]


def test_what_runs_is_seen(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["a" * 500, "b"])
    open_page(page, serve_scripted(script))
    say(page, "Hi")
    script.go_on()
    page.locator("#plots").get_by_text("1 running").wait_for()
    page.locator("#running .card").get_by_text("1 running").wait_for()
    script.go_on()
    answered(page)
    page.locator("#plots").get_by_text("0 running").wait_for()
    speed, _, first = page.locator("#plots output").all_inner_texts()[:3]
    assert float(speed) >= 0
    assert first.endswith("s")
    drawn = page.locator("#plots canvas").first.evaluate(
        """canvas => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert drawn > 3


@pytest.mark.thorough
def test_a_server_that_is_gone_and_comes_back(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    page.route("**/v1/stats", lambda route: route.abort())
    page.locator("#health").get_by_text("The server cannot be reached.").wait_for()
    assert page.locator("#status.stale").count() == 1
    page.unroute("**/v1/stats")
    page.locator("#health").get_by_text("1 ready").wait_for()
    page.locator("#status:not(.stale)").wait_for()


def stats(server: Server) -> dict[str, Any]:
    [model] = server.http.get("/v1/stats").json()["models"]
    return dict(model)


def test_the_numbers_behind_the_plots(serve_scripted: ServeScripted) -> None:
    script = Gated(["abc", "de"])
    server = serve_scripted(script)
    idle = stats(server)
    assert (idle["id"], idle["backend"], idle["state"]) == ("scripted", "scripted", "ready")
    assert (idle["running"], idle["waiting"], idle["first_tokens"]) == (0, 0, [])
    body = {"prompt": "12345", "stream": True}
    script.go_on()
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        running = stats(server)
        assert running["running"] == 1
        assert running["completion_tokens"] == 3
        [first] = running["first_tokens"]
        script.go_on()
        list(lines)
    done = stats(server)
    assert done["running"] == 0
    assert (done["prompt_tokens"], done["completion_tokens"]) == (5, 6)
    [same] = done["first_tokens"]
    assert same == pytest.approx(first, abs=0.1)
    assert same["seconds"] >= 0


class Remembering(ScriptedEngine):
    """Has room for 200 tokens, and uses 50."""

    def stats(self) -> EngineStats:
        return EngineStats(kv_used=50, kv_total=200)


@pytest.mark.thorough
def test_the_use_of_the_cache(page: "Page") -> None:
    script = Gated(["a", "b"])
    plugins = plugins_with(scripted=engine_backend(lambda: Remembering(script)))
    with serve(scripted_config(), plugins) as server:
        open_page(page, server)
        say(page, "Hi")
        script.go_on()
        page.locator(".plot", has_text="KV cache").get_by_text("25 %").wait_for()
        script.go_on()
        answered(page)


def test_what_nobody_waits_for_is_counted_no_longer(serve_scripted: ServeScripted) -> None:
    script = Gated(["abc"])
    server = serve_scripted(script)
    body = {"prompt": "12345", "stream": True}
    script.go_on()
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    assert script.closed.wait(20)
    while stats(server)["running"]:
        pass
    assert stats(server)["completion_tokens"] >= 3


def test_numbers_need_a_key() -> None:
    config = {"models": [], "server": {"api_keys": ["secret"]}}
    with serve(Config.model_validate(config), plugins_with()) as server:
        assert server.http.get("/v1/stats").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx2.get(f"{server.url}/v1/stats", headers=headers).json()["models"] == []


@pytest.mark.thorough
def test_the_page_without_models(page: "Page") -> None:
    with serve(Config.model_validate({"models": []}), plugins_with()) as server:
        page.goto(server.url)
        page.locator("#health").get_by_text("0 ready").wait_for()
        say(page, "Hi")
        assert "no model is configured" in answered(page).locator(".error").inner_text()


@pytest.mark.thorough
def test_requests_are_listed_and_cancelled(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["So far", " and no further"])
    server = serve_scripted(script, max_running=1)
    open_page(page, server)
    say(page, "Hi")
    script.go_on()
    rows = page.locator("#requests li")
    rows.get_by_text("running").wait_for()
    body = {"prompt": "x", "request_id": "second"}
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(server.http.post, "/v1/completions", json=body)
        rows.nth(1).get_by_text("queued, 0 ahead").wait_for()
        page.locator("#plots").get_by_text("1 waiting").wait_for()
        rows.nth(1).get_by_role("button").click()
        assert waiting.result(60).json()["error"]["code"] == "request_cancelled"
    rows.nth(1).wait_for(state="detached")
    rows.nth(0).get_by_role("button").click()
    answer = answered(page)
    assert answer.locator(".said").inner_text() == "So far"
    assert "Cut off by the server" in answer.locator(".note").inner_text()
    page.locator("#requests-section").wait_for(state="hidden")
