"""The benchmarks count what servers really send, and compare it the right way round."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from benchmarks import compare, layer, layer_tabbyapi, overhead, report, scenarios, watched
from benchmarks.load import burst
from benchmarks.models import Model
from benchmarks.peer_commands import PEERS
from benchmarks.prompts import Prompts
from benchmarks.servers import Server, Settings, running
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import Delta, GenerationRequest
from enginebay.testing.scripted import Script
from tests.support import DEMO_MODEL, REPOSITORY, plugins_with, scripted, scripted_config, serve

RESULTS = REPOSITORY / "benchmarks" / "results"
WORDS = [f" word{i}" for i in range(2000)]


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[Server]:
    with serving(WORDS, "enginebay-hf") as server:
        yield server


@contextmanager
def serving(words: Script | list[str], peer: str, context_length: int = 4096) -> Iterator[Server]:
    """A server that says these words, asked as this peer is."""
    backend = scripted(words, context_length=context_length)
    with serve(scripted_config(), plugins_with(scripted=backend)) as served:
        port = int(served.url.rpartition(":")[2])
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


async def test_conversations_send_all_that_has_been_said() -> None:
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return WORDS

    with serving(script, "enginebay-hf", context_length=10_000) as server:
        row = await scenarios.conversations(server, Prompts(DEMO_MODEL), "test", 2)
    assert row["chats"] == 2
    assert row["exact"]
    assert len(row["ttft_ms"]) == scenarios.TURNS
    assert row["tokens_per_second"] > 0
    systems = {prompt.partition("\n")[0] for prompt in prompts}
    assert len(systems) == 1  # the chats share it
    longest = max(prompts, key=len)
    assert longest.count("<user>") == scenarios.TURNS
    assert longest.count("<assistant> word0") == scenarios.TURNS - 1
    assert len([prompt for prompt in prompts if longest.startswith(prompt)]) == scenarios.TURNS


async def test_constrained_answers_are_as_long_as_free_ones(server: Server) -> None:
    row = await scenarios.constrained(server, Prompts(DEMO_MODEL), "test", 2)
    assert row["streams"] == 2
    assert row["exact"]
    assert row["ratio"] == pytest.approx(row["constrained"] / row["free"], abs=0.001)


@pytest.mark.parametrize("peer", ["enginebay-layer", "limit: bare ASGI app"])
async def test_the_servers_without_a_model_give_the_tokens_asked_for(peer: str) -> None:
    settings = Settings(Model("demo", DEMO_MODEL, DEMO_MODEL, "float32"), 1, 2, 256)
    with running(PEERS[peer], settings) as server:
        seen = await burst(server, 2, ["a", "b"], 5)
    assert seen.tokens == 10
    assert seen.exact


def test_the_engine_without_a_model_gives_each_stream_a_token_each_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REAL-15: by a clock of the test; over HTTP, events merge where the machine is busy."""
    clock = SimpleNamespace(now=100.0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        clock.now += seconds

    monkeypatch.setattr(layer, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    engine = layer.TickingEngine()
    for name in ("a", "b"):
        sampling = SamplingParams(max_tokens=3)
        engine.add_request(
            GenerationRequest(request_id=name, prompt_token_ids=(1,), sampling=sampling)
        )
    steps = [list(engine.step()) for _ in range(3)]
    assert [[name for name, _ in step] for step in steps] == [["a", "b"]] * 3
    reasons = [
        delta.finish_reason for step in steps for _, delta in step if isinstance(delta, Delta)
    ]
    assert reasons == [None] * 4 + ["length"] * 2
    assert slept == [0.0, layer.TICK, layer.TICK]


async def test_tabbyapi_gets_a_token_each_tick_and_then_the_end() -> None:
    polled: list[None] = []

    class Disconnect:
        async def poll(self) -> None:
            polled.append(None)

    container = layer_tabbyapi.TickingContainer()
    params = SimpleNamespace(max_tokens=3)
    chunks = [chunk async for chunk in container.stream_generate("1", "", params, Disconnect())]
    assert [chunk.get("text") for chunk in chunks] == [layer.PIECE] * 3 + [None]
    assert chunks[-1]["finish_reason"] == "length"
    assert len(polled) == 3
    assert (layer.TICK, layer.PIECE) == (layer_tabbyapi.TICK, layer_tabbyapi.PIECE)


def test_a_peer_without_schemas_is_not_asked_for_them(server: Server) -> None:
    without = Server(PEERS["transformers"], server.port, server.model, psutil.Process())
    with pytest.raises(RuntimeError, match="cannot keep to a JSON schema"):
        without.constrained(scenarios.RECORDS)


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


def test_tables_of_scenarios_have_medians_of_the_rounds() -> None:
    def chats(*ttft: float, cached: list[float]) -> report.Json:
        row = {"chats": 4, "ttft_ms": list(ttft), "cached_tokens": cached}
        return {**row, "tokens_per_second": 50.0}

    def answers(free: float, kept: float) -> report.Json:
        return {"streams": 1, "free": free, "constrained": kept, "ratio": kept / free}

    latencies: report.Json = {"repeated_prompt": [], "long_prompt": []}
    rounds = [chats(9, 1, cached=[0, 400]), chats(7, 2, cached=[0, 420]), chats(8, 3, cached=[])]
    silent = [chats(5, 5, cached=[])]
    constrained = [answers(10, 9), answers(10, 8), answers(20, 10)]
    scenes = {
        "enginebay-hf": {**latencies, "conversations": rounds, "constrained": constrained},
        "transformers": {**latencies, "conversations": silent, "constrained": []},
    }
    measured = {"bursts": {}, "limits": {}, "errors": {}, "scenarios": scenes}
    table = report.tables({"model": "m", "threads": 2, "engines": {"hf": measured}})
    assert "| enginebay-hf | 4 | 8 | 2 | 410 | 50 |" in table
    assert "| transformers | 4 | 5 | 5 |  | 50 |" in table
    assert "| enginebay-hf | 1 | 10 | 9 | 0.8 |" in table


@pytest.mark.parametrize("kind", report.TABLES)
def test_the_tables_of_the_documentation_are_those_of_its_result_files(kind: str) -> None:
    document = (REPOSITORY / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    assert report.with_table(kind, document, RESULTS) == document


def test_the_summary_of_the_documentation_has_other_servers() -> None:
    document = (REPOSITORY / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    [row] = [line for line in document.splitlines() if line.startswith("| hf, 100m: transformers")]
    assert row.count("(") > 1


def test_a_summary_needs_a_place_in_the_document() -> None:
    with pytest.raises(ValueError, match="end of summary"):
        report.with_table("summary", "# Benchmarks", RESULTS)
    text = "before <!-- summary of old.json -->gone<!-- end of summary --> after"
    replaced = report.with_table("summary", text, RESULTS, ["cpu-100m.json"])
    assert replaced.startswith("before <!-- summary of cpu-100m.json -->\n\n| Enginebay")
    assert "gone" not in replaced
    assert replaced.endswith("<!-- end of summary --> after")


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


def _layer(*cpu: tuple[float, float]) -> report.Json:
    """Results of `overhead.py`: the CPU time of the bare app and of Enginebay in each round."""
    return {
        "measured": [
            {"mode": "chat", "streams": 1, "server": name, "cpu_ms_per_1000_tokens": ms}
            for pair in cpu
            for name, ms in zip(("bare", "in step"), pair, strict=True)
        ]
    }


def test_slower_is_worse_by_more_than_noise() -> None:
    old = compare.ratios(_layer((4, 8), (4, 8.4), (8, 16)))  # on a slower machine it is the same
    assert old == {"chat, 1 streams, CPU: bare": [0.5, 4 / 8.4, 0.5]}
    for new, worse in (
        (_layer((5, 10), (5, 10)), False),
        (_layer((4, 10), (4, 10)), True),
        (_layer((4, 10), (4, 10), (4, 7.9)), False),  # one round was as before
        (_layer((4, 8.3), (4, 8.3)), False),
    ):
        table, found = compare.compared(old, compare.ratios(new), 0.1)
        assert bool(found) is worse
        assert ("worse" in table) is worse


def test_slower_turns_and_schemas_are_worse() -> None:
    def results(last_turn: float, ratio: float) -> report.Json:
        rows = {
            "conversations": [{"chats": 4, "ttft_ms": [100.0, last_turn]}],
            "constrained": [{"streams": 1, "ratio": ratio}],
        }
        measured = {"bursts": {}, "limits": {}, "scenarios": {"enginebay-hf": rows}}
        return {"model": "m", "engines": {"hf": measured}}

    old = compare.ratios(results(10, 0.9))
    assert old == {
        "m, hf: the last turn of 4 chats": [10.0],
        "m, hf: a JSON schema, 1 streams": [0.9],
    }
    assert compare.compared(old, compare.ratios(results(11, 0.9)), 0.2)[1] == []
    worse = compare.compared(old, compare.ratios(results(20, 0.5)), 0.2)[1]
    assert worse == list(old)


def test_every_result_file_that_is_compared_is_as_good_as_itself() -> None:
    for name in ("overhead", "cpu-100m"):
        text = (REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
        seen = compare.ratios(json.loads(text))
        assert len(seen) > 10
        assert compare.compared(seen, seen, 0.0)[1] == []
