"""Texts of KoboldCpp's API while they are generated: seen, aborted, and measured afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from enginebay_kobold.genkeys import RunningTexts
from tests.api.test_queue import keys_of
from tests.apis.kobold import GENERATE, STREAM, check_error, events, text_of
from tests.conftest import ServeScripted
from tests.held import Holding, holding
from tests.support import NO_TLS, Server

ABORTED = {"success": True, "done": True}
END = {"token": "", "finish_reason": "stop"}


class Client:
    """Somebody with a key, or with an address."""

    def __init__(self, server: Server, key: str = "none", address: str = "127.0.0.1") -> None:
        transport = httpx2.HTTPTransport(local_address=address, verify=NO_TLS)
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx2.Client(
            base_url=server.url, timeout=60, transport=transport, headers=headers
        )

    def so_far(self, genkey: str | None = None) -> str:
        return text_of(self.http.post("/api/extra/generate/check", json={"genkey": genkey}))

    def abort(self, genkey: str | None = None) -> None:
        response = self.http.post("/api/extra/abort", json={"genkey": genkey})
        assert response.json() == ABORTED

    @contextmanager
    def streaming(self, prompt: str, **body: Any) -> Iterator[Iterator[dict[str, Any]]]:
        asked = {"prompt": prompt, **body}
        with self.http.stream("POST", STREAM, json=asked) as response:
            yield events(response.iter_lines())

    def generate(self, prompt: str, **body: Any) -> httpx2.Response:
        return self.http.post(GENERATE, json={"prompt": prompt, **body})


@pytest.fixture
def two() -> Iterator[tuple[Holding, Client, Client]]:
    """A server with one slot that is kept, and two clients with keys."""
    keys = keys_of("one", "two")
    with holding(max_running=3, keys=keys, server={"auth": "required"}) as at:
        clients = Client(at.server, "one"), Client(at.server, "two")
        yield at, *clients
        for client in clients:
            client.http.close()


def texts_of(at: Holding) -> RunningTexts:
    found: RunningTexts = at.server.app.state.services.kept(RunningTexts)
    return found


def test_a_stream(two: tuple[Holding, Client, Client]) -> None:  # KOB-4, KOB-9
    at, one, other = two
    with (
        one.streaming("x", genkey="KEY") as mine,
        other.streaming("y", genkey="KEY") as theirs,
    ):
        assert [next(mine)["token"], next(theirs)["token"]] == ["a", "a"]
        assert one.so_far("KEY") == other.so_far("KEY") == "a"
        assert one.so_far("other") == one.so_far() == ""
        one.abort("other")
        one.abort()
        one.abort("KEY")
        assert list(mine) == [END]
        at.until(lambda: at.held.running == ["y"])
        assert one.so_far("KEY") == ""
        assert other.so_far("KEY") == "a"
        at.let_go("y")
        assert list(theirs) == [{"token": "b", "finish_reason": "stop"}]
    assert other.so_far("KEY") == ""


def test_a_whole_text(two: tuple[Holding, Client, Client]) -> None:  # KOB-4, KOB-9
    at, one, other = two
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(one.generate, "x", genkey="KEY")
        at.until(lambda: texts_of(at).so_far(("key", "one"), "KEY"))
        assert other.so_far("KEY") == ""
        other.abort("KEY")
        one.abort("KEY")
        result = answer.result().json()
    assert result == {"results": [{"text": "a", "finish_reason": "stop"}]}


def test_several_with_one_genkey(two: tuple[Holding, Client, Client]) -> None:
    at, one, _ = two
    with one.streaming("x", genkey="K") as first, one.streaming("y", genkey="K") as second:
        assert [next(first)["token"], next(second)["token"]] == ["a", "a"]
        one.abort("K")
        assert [list(first), list(second)] == [[END], [END]]
    at.until(lambda: not at.held.running)


def test_one_that_waits(two: tuple[Holding, Client, Client]) -> None:
    at, one, _ = two
    with (
        ThreadPoolExecutor() as threads,
        one.streaming("x") as first,
        one.streaming("y") as second,
    ):
        assert [next(first)["token"], next(second)["token"]] == ["a", "a"]
        waiting = threads.submit(one.generate, "z", genkey="KEY")
        at.queued(1)
        assert one.so_far("KEY") == ""
        one.abort("KEY")
        assert "cancelled" in check_error(waiting.result(), waiting.result().status_code)["msg"]
        at.let_go("x", "y")
        assert [list(first), list(second)] == [[{"token": "b", "finish_reason": "stop"}]] * 2
    assert "z" not in at.held.begun


def test_a_client_that_leaves(two: tuple[Holding, Client, Client]) -> None:
    at, one, _ = two
    with one.streaming("x", genkey="KEY") as mine:
        next(mine)
    at.until(lambda: not at.held.running)
    at.until(lambda: not texts_of(at).so_far(("key", "one"), "KEY"))


@pytest.mark.parametrize("kind", ["nothing", "empty", "text", "list", "null", "other"])
def test_abort_without_a_body(kind: str) -> None:  # KOB-5
    """It ends what comes from the same address without a genkey, and nothing else."""
    sent: dict[str, dict[str, Any]] = {
        "nothing": {},
        "empty": {"json": {}},
        "text": {"content": b"{genkey", "headers": {"Content-Type": "text/plain"}},
        "list": {"json": []},
        "null": {"json": {"genkey": None}},
        "other": {"json": {"genkey": "", "more": 1}},
    }
    with holding(max_running=8) as at:
        here, there = Client(at.server), Client(at.server, address="127.0.0.2")
        with (
            here.streaming("x") as mine,
            here.streaming("y", genkey="KEY") as keyed,
            there.streaming("z") as theirs,
        ):
            for stream in (mine, keyed, theirs):
                assert next(stream)["token"] == "a"
            assert text_of(here.http.get("/api/extra/generate/check")) == here.so_far() == "a"
            response = here.http.post("/api/extra/abort", **sent[kind])
            assert (response.status_code, response.json()) == (200, ABORTED)
            assert list(mine) == [END]
            at.until(lambda: sorted(at.held.running) == ["y", "z"])
            at.let_go("y", "z")
            for stream in (keyed, theirs):
                assert list(stream) == [{"token": "b", "finish_reason": "stop"}]
        response = here.http.post("/api/extra/abort", **sent[kind])
        assert (response.status_code, response.json()) == (200, ABORTED)
        for client in (here, there):
            client.http.close()


def test_performance() -> None:  # KOB-13
    with holding(max_running=1) as at:
        client = Client(at.server)

        def performance() -> dict[str, Any]:
            found: dict[str, Any] = client.http.get("/api/extra/perf").json()
            return found

        before = performance()
        assert (before["idle"], before["queue"], before["total_gens"]) == (1, 0, 0)
        assert before["total_img_gens"] == before["hordeexitcounter"] == 0
        with ThreadPoolExecutor() as threads, client.streaming("x", sampler_seed=7) as mine:
            next(mine)
            waiting = threads.submit(client.generate, "y", max_length=2)
            at.queued(1)
            busy = performance()
            assert (busy["idle"], busy["queue"], busy["total_gens"]) == (0, 1, 0)
            at.let_go("x")
            list(mine)
            at.until(lambda: texts_of(at).performance(running=0, waiting=0).total_gens == 1)
            assert performance()["last_seed"] == 7
            at.let_go("y")
            waiting.result()
        at.until(lambda: texts_of(at).performance(running=0, waiting=0).total_gens == 2)
        after = performance()
        assert (after["idle"], after["queue"], after["last_seed"]) == (1, 0, -1)
        assert (after["last_token_count"], after["stop_reason"]) == (2, 1)
        assert after["last_process"] > 0
        assert after["last_eval"] > 0
        assert after["uptime"] >= after["idletime"] >= 0
        client.http.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [({}, 1), ({"max_length": 1}, 0), ({"stop_sequence": ["b"]}, 2)],
)
def test_reasons_of_stopping(
    serve_scripted: ServeScripted, body: dict[str, Any], reason: int
) -> None:
    server = serve_scripted(["a", "b"])
    assert server.http.get("/api/extra/perf").json()["stop_reason"] == -1
    text_of(server.http.post(GENERATE, json={"prompt": "x", **body}))
    server.settle()
    assert server.http.get("/api/extra/perf").json()["stop_reason"] == reason


def test_an_engine_that_dies(serve_scripted: ServeScripted) -> None:  # KOB-1, KOB-10
    def dying(prompt: str, index: int) -> Iterator[str]:
        if prompt == "later":
            yield from "ab"
        raise RuntimeError("broken")

    server = serve_scripted(dying)
    with server.http.stream("POST", STREAM, json={"prompt": "later"}) as response:
        *pieces, last = events(response.iter_lines())
    assert "".join(piece["token"] for piece in pieces) == "ab"
    assert {piece["finish_reason"] for piece in pieces} == {None}
    assert last.keys() == {"error"}
    assert "died" in last["error"]["message"]
    assert text_of(server.http.get("/api/extra/generate/check")) == ""


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_an_engine_that_dies_at_once(serve_scripted: ServeScripted, path: str) -> None:  # KOB-10
    def dying(prompt: str, index: int) -> Iterator[str]:
        raise RuntimeError("broken")

    server = serve_scripted(dying)
    check_error(server.http.post(path, json={"prompt": "x"}), 500)
