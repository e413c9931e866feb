"""Models that make no progress."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from enginebay import (
    Backend,
    Delta,
    EngineBackend,
    EngineStats,
    GenerationRequest,
    ServingError,
)
from enginebay.chat.answer.counts import Counts
from enginebay.config.schema import Config
from enginebay.models.registry import Models
from enginebay.server.observe.liveness import Watch
from enginebay.testing import ScriptedEngine
from tests.engine.test_engine import request
from tests.support import InlineBackend, plugins_with, serve

LIMIT = 60


class Wedged(ScriptedEngine):
    """Its step does not return while `goes_on` is not set."""

    def __init__(self) -> None:
        super().__init__(["a"])
        self.goes_on = threading.Event()
        self.steps = threading.Event()

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        self.steps.set()
        assert self.goes_on.wait(60)
        return super().step()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config(*names: str, **server: Any) -> Config:
    models = [{"name": name, "backend": name, "path": "."} for name in names]
    return Config.model_validate({"models": models, "server": server})


@asynccontextmanager
async def watching(backend: Backend) -> AsyncIterator[tuple[Watch, Clock, Models, Counts]]:
    """A watch over one model, with a clock of its own, and no one else who checks."""
    plugins = plugins_with(m=lambda settings: backend)
    models = Models(config("m"), plugins, lambda *_: None)
    await models.load_at_start()
    clock = Clock()
    counts = Counts(clock)
    watch = Watch(models, counts, LIMIT, clock)
    try:
        yield watch, clock, models, counts
    finally:
        watch.close()
        await models.close()


async def test_an_idle_model_that_wedges_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.server.observe.liveness._PATIENCE", 0.01)
    engine = Wedged()
    async with watching(EngineBackend(lambda: engine)) as (watch, clock, models, _):
        model = models.find("m")
        await watch.check()
        clock.now += 5 * LIMIT
        await watch.check()
        assert model.stuck is None  # idle for long, but it answers
        stream = model.served().backend.generate(request("1"))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(engine.steps.wait)
        clock.now += 2
        await watch.check()
        clock.now += LIMIT
        await watch.check()
        assert model.stuck is None  # not for longer than the limit
        clock.now += 2
        await watch.check()
        assert model.stuck == "no progress for 62 s while 0 requests wait for it"
        engine.goes_on.set()
        await first
        await model.served().backend.ping()
        clock.now += 2
        await watch.check()
        assert model.stuck is None


async def test_pings_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.server.observe.liveness._PATIENCE", 0.01)

    class Silent(InlineBackend):
        pings = 0

        async def ping(self) -> None:
            self.pings += 1
            if not answers:
                await asyncio.Event().wait()

    answers = True
    backend = Silent(ScriptedEngine(["a"]))
    async with watching(backend) as (watch, clock, _, _):
        clock.now += 5
        for _ in range(10):
            await watch.check()
        assert backend.pings == 1  # of ten checks within a second
        answers = False
        for _ in range(10):
            clock.now += 2
            await watch.check()
        assert backend.pings == 2  # the second has not been answered yet


async def test_requests_without_progress_of_a_backend_that_cannot_be_asked() -> None:
    class Silent(InlineBackend):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
            await asyncio.Event().wait()
            yield Delta()

    async with watching(Silent(ScriptedEngine(["a"]))) as (watch, clock, models, counts):
        model = models.find("m")
        of_model = counts.of(model.name)
        with of_model.working():
            clock.now += LIMIT
            await watch.check()
            assert model.stuck is None
            of_model.progress()
            clock.now += LIMIT
            with of_model.working():
                await watch.check()
                assert model.stuck is None
                clock.now += 1
                await watch.check()
                assert model.stuck == ("no progress for 61 s while 2 requests wait for it")
        clock.now += 1
        await watch.check()
        assert model.stuck is None


async def test_steps_without_deltas_are_progress() -> None:
    """As of a long prompt."""

    class Prefilling(InlineBackend):
        steps = 0

        @property
        def stats(self) -> EngineStats:
            return EngineStats(steps=self.steps)

    backend = Prefilling(ScriptedEngine(["a"]))
    async with watching(backend) as (watch, clock, models, counts):
        model = models.find("m")
        with counts.of(model.name).working():
            for _ in range(4):
                clock.now += LIMIT + 1
                backend.steps += 1
                await watch.check()
                assert model.stuck is None
            clock.now += LIMIT + 1
            await watch.check()
            assert model.stuck == "no progress for 61 s while 1 requests wait for it"


async def test_a_model_that_is_not_loaded_is_not_stuck() -> None:
    async with watching(InlineBackend(ScriptedEngine(["a"]))) as (watch, clock, models, _):
        model = models.find("m")
        clock.now += 5
        await watch.check()
        await models.close()
        clock.now += 5
        await watch.check()
        assert model.stuck is None


def test_a_wedged_engine_over_http() -> None:
    """`/health` names it, and one model that hangs is no harm to another."""
    engine = Wedged()
    plugins = plugins_with(
        bad=lambda settings: EngineBackend(lambda: engine),
        good=lambda settings: EngineBackend(lambda: ScriptedEngine(["a"])),
    )
    routes = ("/health", "/health/live", "/livez", "/health/ready", "/readyz")
    with serve(config("bad", "good", stall_timeout=0.01, api_keys=["key"]), plugins) as server:
        server.app.state.services.watch._checked_at = float("-inf")
        assert [server.http.get(route).status_code for route in routes] == [200] * 5
        body = {"model": "bad", "prompt": "x"}
        headers = {"x-api-key": "key"}
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(server.http.post, "/v1/completions", json=body, headers=headers)
            assert engine.steps.wait(60)
            while (answer := server.http.get("/health/live", headers=headers)).status_code == 200:
                pass
            bad, good = answer.json()["models"].values()
            assert bad["state"] == "stuck"
            assert bad["error"].endswith("while 1 requests wait for it")
            assert (good["state"], good["error"]) == ("ready", None)
            statuses = [server.http.get(route).status_code for route in routes]
            assert statuses == [200, 503, 503, 503, 503]
            assert server.http.get("/health").json()["state"] == "degraded"
            cards = server.http.get("/v1/models", headers=headers).json()["data"]
            assert [card["state"] for card in cards] == ["stuck", "ready"]
            metrics = server.http.get("/metrics", headers=headers).text
            assert 'enginebay:model_stuck{backend="bad",model_name="bad"} 1.0' in metrics
            body = {"model": "good", "prompt": "x"}
            answer = server.http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            engine.goes_on.set()
            assert waiting.result(60).status_code == 200
        while server.http.get("/health/live").status_code != 200:
            pass


def test_without_a_model_nothing_is_ready() -> None:
    with serve(config(), plugins_with()) as server:
        assert server.http.get("/health/ready").status_code == 503
        assert server.http.get("/health/live").status_code == 200
