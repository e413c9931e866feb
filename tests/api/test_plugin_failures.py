"""A plugin that fails is named in the log, and the server serves everything else."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter

from enginebay import ErrorForm, Wing
from enginebay.config.schema import Config
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from tests.held import Held, Holding
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def write(folder: Path, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(f"from enginebay import hookimpl\n{code}", encoding="utf-8")


def served(folder: Path, *, script: Any = ("Hello",)) -> Plugins:
    plugins = Plugins(folder=folder)
    plugins.backends("scripted", scripted(script))
    return plugins


def said(server: Server, **body: Any) -> Any:
    answer = server.http.post("/v1/chat/completions", json=CHAT | body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


WRAPPER = """
@hookimpl(wrapper=True)
def generate(backend, request):
    {before}
    return metered((yield), request)

async def metered(stream, request):
    {begin}
    async for delta in stream:
        yield delta
        {within}
"""
BAD = "if request.sampling.seed == 1: {}"


@pytest.mark.parametrize("where", ["before", "begin", "within"])
@pytest.mark.parametrize(
    ("fault", "shown"),
    [("raise KeyError('oops')", "KeyError: 'oops'"), ("raise SystemExit(3)", "SystemExit: 3")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_generate_wrapper_fails_its_own_request(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    where: str,
    fault: str,
    shown: str,
    stream: bool,
) -> None:
    """A request that runs at the same time is answered, and so is one after it."""
    faults = {"before": "pass", "begin": "pass", "within": "pass", where: BAD.format(fault)}
    write(tmp_path, "meter", WRAPPER.format(**faults))
    held, plugins = Held(), Plugins(folder=tmp_path)
    plugins.backends("scripted", lambda settings: held)
    body = CHAT | {"seed": 1, "stream": stream}
    with serve(scripted_config(), plugins) as server, ThreadPoolExecutor(1) as threads:
        holding = Holding(server, held)
        slow = [{"role": "user", "content": "slow"}]
        other = threads.submit(said, server, messages=slow)
        holding.begun("slow")
        failed = server.http.post("/v1/chat/completions", json=body)
        holding.let_go("slow", "x")
        assert other.result(60) == "ab"
        assert said(server) == "ab"
        assert held.running == []
    late = stream and where == "within"
    assert failed.status_code == (200 if late else 500)
    assert "internal error; see the server's log" in failed.text
    assert "oops" not in failed.text
    assert "in the plugin meter" in caplog.text
    assert shown in caplog.text


@pytest.mark.parametrize(
    "code",
    ["return 7", "return odd()\nasync def odd():\n    yield 7"],
    ids=["no stream", "no delta"],
)
def test_a_generate_hook_that_returns_nonsense(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    write(tmp_path, "odd", f"@hookimpl\ndef generate(backend, request):\n    {code}\n")
    with serve(scripted_config(), served(tmp_path)) as server:
        assert server.http.post("/v1/chat/completions", json=CHAT).status_code == 500
        assert server.http.get("/v1/models").status_code == 200
    assert "in the plugin odd" in caplog.text


FACTORY = """
from enginebay import Backend

class Bad(Backend):
    async def start(self):
        {start}
    generate = tokenize = detokenize = None
    async def close(self): ...

def create(settings):
    {create}
    return Bad()

@hookimpl
def register_backends(register):
    register("bad", create, needs_path=False)
"""


@pytest.mark.parametrize("where", ["start", "create"])
@pytest.mark.parametrize("fault", ["1 / 0", "raise SystemExit(3)", "return None"])
def test_a_backend_that_fails_is_a_failed_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, fault: str
) -> None:
    write(tmp_path, "broken", FACTORY.format(**{"start": "pass", "create": "pass", where: fault}))
    models = [{"name": "good", "backend": "scripted", "path": "."}, {"name": "m", "backend": "bad"}]
    with serve(Config.model_validate({"models": models}), served(tmp_path)) as server:
        assert said(server, model="good") == "Hello"
        refused = server.http.post("/v1/chat/completions", json=CHAT | {"model": "m"})
        assert refused.status_code == 503
        assert said(server, model="good") == "Hello"
    assert "model m could not be loaded" in caplog.text
    if fault != "return None":
        assert "in the plugin broken" in caplog.text


ROUTES = """
from enginebay import RouteResponse

async def fails(request):
    {fault}

async def streams(request):
    async def parts():
        yield "a"
        {fault}
    return RouteResponse(body=parts())

@hookimpl
def register_routes(register):
    register("POST", "/fails", fails)
    register("POST", "/streams", streams)
    register.errors("/odd/", lambda error: 1 / 0)
    register("POST", "/odd/{{name}}", fails)
"""


@pytest.mark.parametrize(
    "fault", ["1 / 0", "raise SystemExit(3)", "raise ExceptionGroup('a', [OSError()])"]
)
def test_a_route_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    write(tmp_path, "routes", ROUTES.format(fault=fault))
    with serve(scripted_config(), served(tmp_path)) as server:
        for path in ("/fails", "/odd/x"):
            failed = server.http.post(path)
            assert failed.status_code == 500
            assert "failed in a plugin; see the server's log" in failed.json()["error"]["message"]
        assert "failed in a plugin" in server.http.post("/streams").text
        assert server.http.post("/odd/x/y").status_code == 404
        assert said(server) == "Hello"
    assert "in the plugin routes" in caplog.text
    assert "route POST /fails failed" in caplog.text
    assert "the errors of /odd/x have OpenAI's form: theirs failed" in caplog.text


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/a/{x:nope}", "has braces that are no part"),
        ("/a/{x", "has braces that are no part"),
        ("/a/{}", "has braces that are no part"),
        ("/a/{x}/{x}", "has two parts with the name 'x'"),
    ],
)
def test_a_path_that_cannot_be_served_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    code = f"@hookimpl\ndef register_routes(register):\n    register('GET', {path!r}, print)\n"
    write(tmp_path, "routes", code)
    assert reason in (Plugins(folder=tmp_path).found[-1].error or "")


FORMAT = """
from enginebay import ToolFormat, ReasoningFormat

class Bad(ToolFormat):
    def parser(self, schemas=None): 1 / 0
    def matches(self, template): 1 / 0

class Worse(ReasoningFormat):
    def parser(self, *, inside=False): 1 / 0
    def matches(self, template): 1 / 0
    def starts_inside(self, prompt): 1 / 0

@hookimpl
def register_parsers(reasoning, tools):
    reasoning("worse", Worse())
    tools("bad", Bad())
"""


def test_formats_that_fail_match_no_template(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "formats", FORMAT)
    with serve(scripted_config(), served(tmp_path)) as server:
        assert said(server) == "Hello"
    for name in ("worse", "bad"):
        assert f"the format {name} failed to read a chat template" in caplog.text


class Failing(Wing):
    """A wing whose methods fail as it is told."""

    name = "failing"

    def __init__(self, where: str, error: BaseException) -> None:
        self.where = where
        self.error = error

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def routers(self, kernel: Any) -> Iterator[APIRouter]:
        router = APIRouter()
        router.add_api_route("/of/wing", lambda: "fine")
        yield router
        self._fail("routers")

    def error_forms(self) -> dict[str, ErrorForm]:
        self._fail("error_forms")
        return {}

    def service_info(self) -> dict[str, dict[str, str]]:
        self._fail("service_info")
        return {}

    def problems(self, config: Any) -> list[Any]:
        self._fail("problems")
        return []

    @asynccontextmanager
    async def running(self, kernel: Any) -> AsyncIterator[None]:
        self._fail("start")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work())
            yield
        self._fail("end")

    async def _work(self) -> None:
        self._fail("work")


class Healthy(Wing):
    """A wing that notes when it runs."""

    name = "healthy"

    def __init__(self) -> None:
        self.events: list[str] = []

    @asynccontextmanager
    async def running(self, kernel: Any) -> AsyncIterator[None]:
        self.events.append("started")
        yield
        self.events.append("ended")


WORDS = {
    "routers": "wing failing: routers() failed",
    "error_forms": "wing failing: error_forms() failed",
    "service_info": "wing failing: service_info() failed",
    "start": "wing failing: it could not start",
    "work": "wing failing: it stopped with an error",
    "end": "wing failing: it could not end properly",
}


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *((where, RuntimeError("no")) for where in WORDS),
        *((where, SystemExit(3)) for where in WORDS if where != "work"),
        *((where, asyncio.CancelledError()) for where in ("start", "end")),
    ],
)
def test_a_wing_that_fails(
    caplog: pytest.LogCaptureFixture, where: str, error: BaseException
) -> None:
    """The server starts, answers and stops, and so does a wing after it."""
    plugins = plugins_with(scripted=scripted(["Hello"]))
    healthy = Healthy()
    plugins.wings("failing", Failing(where, error))
    plugins.wings("healthy", healthy)
    with serve(scripted_config(), plugins) as server:
        assert said(server) == "Hello"
        assert server.http.get("/.well-known/serviceinfo").status_code == 200
        assert server.http.get("/of/wing").status_code == (404 if where == "routers" else 200)
        assert healthy.events == ["started"]
        assert server.http.get("/health").status_code == 200
    assert healthy.events == ["started", "ended"]
    levels = [each.levelno for each in caplog.records if WORDS[where] in each.message]
    assert set(levels) == {logging.ERROR}


def test_a_wing_that_cannot_check_the_config(caplog: pytest.LogCaptureFixture) -> None:
    plugins = plugins_with(scripted=scripted(["Hello"]))
    plugins.wings("failing", Failing("problems", RuntimeError("no")))
    assert check_config(scripted_config(), plugins) == []
    assert "wing failing: problems() failed" in caplog.text
