"""The benchmarks count what servers really send, and compare it the right way round."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]
import pytest

from benchmarks import overhead, report, scenarios, watched
from benchmarks.load import burst
from benchmarks.prompts import Prompts
from benchmarks.servers import PEERS, Server
from tests.support import DEMO_MODEL, plugins_with, scripted, scripted_config, serve

WORDS = [f" word{i}" for i in range(2000)]


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[Server]:
    with serving(WORDS, "enginebay-hf") as server:
        yield server


@contextmanager
def serving(words: list[str], peer: str) -> Iterator[Server]:
    """A server that says these words, asked as this peer is."""
    with serve(scripted_config(), plugins_with(scripted=scripted(words))) as running:
        port = int(running.url.rpartition(":")[2])
        yield Server(PEERS[peer], port, "scripted", psutil.Process())


async def test_a_burst_counts_the_tokens_of_all_streams(server: Server) -> None:
    seen = await burst(server, 3, ["a", "b", "c", "d", "e"], 40)
    assert seen.tokens == 5 * 40
    assert seen.exact
    assert len(seen.ttft) == 5
    assert seen.seconds > 0


async def test_answers_without_usage_count_the_tokens_asked_for(server: Server) -> None:
    silent = Server(PEERS["llama-cpp-python"], server.port, server.model, psutil.Process())
    seen = await burst(silent, 1, ["a"], 40)
    assert seen.tokens == 40
    assert seen.exact


async def test_an_answer_that_ends_early_is_not_exact() -> None:
    with serving(["one", " two"], "llama-cpp-python") as silent:
        seen = await burst(silent, 1, ["a"], 40)
    assert not seen.exact
    assert 1 <= seen.tokens <= 2


async def test_an_error_is_no_measurement(server: Server) -> None:
    unknown = Server(server.peer, server.port, "unknown", psutil.Process())
    with pytest.raises(ExceptionGroup, match="unhandled"):
        await burst(unknown, 1, ["a"], 5)


async def test_a_long_prompt_needs_streams_that_run() -> None:
    ended = pytest.raises(RuntimeError, match="ended before")
    with serving(["one", " two"], "enginebay-hf") as short, ended:
        await scenarios.long_prompt(short, Prompts(DEMO_MODEL), "test", 4096)


@pytest.mark.parametrize("tokens", [1, 64, 800])
def test_prompts_have_exactly_the_tokens_asked_for(tokens: int) -> None:
    prompts = Prompts(DEMO_MODEL)
    texts = prompts.make(3, tokens, "seed")
    assert [prompts.count(text) for text in texts] == [tokens] * 3
    assert texts == prompts.make(3, tokens, "seed")
    assert texts != prompts.make(3, tokens, "another")


def test_ratios_say_how_many_times_as_fast_enginebay_is() -> None:
    latency = {"p50": 1.0, "p99": 2.0, "max": 3.0}

    def bursts(*speeds: float) -> list[report.Json]:
        return [
            {
                "streams": 4,
                "tokens_per_second": speed,
                "tokens_per_cpu_second": speed / 2,
                "other_cores": 0.0,
                "ttft_ms": latency,
                "inter_token_ms": latency,
            }
            for speed in speeds
        ]

    table = report.tables(
        {
            "model": "m",
            "threads": 2,
            "engines": {
                "hf": {
                    "bursts": {
                        "enginebay-hf": bursts(300, 60, 400),
                        "transformers": bursts(100, 20, 100),
                    },
                    "limits": {},
                    "scenarios": {},
                    "errors": {},
                }
            },
        }
    )
    assert "| enginebay-hf | 4 | 300 | 150 |  |  | 1 | 2 | 1 | 2 |" in table
    assert "| transformers | 4 | 100 | 50 | 3.00 | 3.00 | 1 | 2 | 1 | 2 |" in table


@pytest.fixture(name="talkers", scope="module")
def _talkers() -> Iterator[dict[str, watched.Talker]]:
    with (
        watched.running(overhead.SERVERS["bare"]) as bare,
        watched.running(overhead.SERVERS["in step"]) as in_step,
    ):
        yield {"bare": bare, "in step": in_step}


@pytest.mark.parametrize("mode", overhead.MODES)
def test_overhead_is_measured_with_one_event_a_token(
    talkers: dict[str, watched.Talker], mode: str
) -> None:
    measured = list(overhead.compare(talkers, 3, mode, 3000))
    assert [entry["server"] for entry in measured] == ["bare", "in step"]
    assert [entry["tokens_per_event"] for entry in measured] == [1.0, 1.0]
    assert all(entry["tokens_per_second"] > 0 for entry in measured)


def test_the_bare_app_sends_the_events_of_enginebay(talkers: dict[str, watched.Talker]) -> None:
    event = overhead.single_event(talkers["in step"], "chat")
    assert json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] == {"content": " token"}
    _, _, body = overhead.ready_made(event, 3, 1).partition(b"\r\n\r\n")
    url = f"http://127.0.0.1:{talkers['bare'].port}/"
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        assert answer.read() == event * 3 + b"data: [DONE]\n\n"


def test_an_overhead_is_how_many_times_as_many_tokens_the_bare_app_sends() -> None:
    def entries(server: str, *speeds: float) -> list[report.Json]:
        return [
            {
                "server": server,
                "mode": "chat",
                "streams": 16,
                "tokens_per_second": speed,
                "cpu_ms_per_1000_tokens": 1e6 / speed,
                "tokens_per_event": 1.0,
                "client_cores": 0.5,
            }
            for speed in speeds
        ]

    measured = [
        *entries("bare", 100_000, 10_000, 100_000),
        *entries("in step", 50_000, 5_000, 60_000),
        *entries("free", 80_000, 9_000, 80_000),
    ]
    row = "| chat | 16 | 100,000 | 50,000 | 0.50 | 10 | 20 | 2.00 | 1.00 | 80,000 | 0.80 | 1 |"
    assert row in overhead.table({"measured": measured})
