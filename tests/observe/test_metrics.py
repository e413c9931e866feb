"""`/metrics`, scraped over HTTP from a server that answers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enginebay import Delta, GenerationRequest, InvalidRequestError
from enginebay.chat.answer.counts import AnswerCounts, ModelCounts
from enginebay.chat.answer.histogram import Histogram
from enginebay.chat.answer.usage import UsageCounter
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import (
    InlineBackend,
    Server,
    engine_backend,
    plugins_with,
    scripted_config,
    serve,
)

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
MODEL = {"model_name": "scripted", "backend": "scripted"}


def scraped(server: Server, name: str, **labels: str) -> float | None:
    """The value of one series; None if there is none."""
    server.settle()
    text = server.http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"enginebay:{name}" and sample.labels == labels:
                return sample.value
    return None


def test_an_answer_is_counted(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["a", "b", "c"])
    for stream in (False, True):
        body = {**CHAT, "model": "scripted", "n": 2, "stream": stream}
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    server.run(server.app.state.services.models.find("scripted").served().backend.ping())
    prompt = len("<user>Hi\n<assistant>")
    answers = {
        "prompt_tokens_total": 2 * prompt,
        "generation_tokens_total": 2 * 2 * 4,
        "time_to_first_token_seconds_count": 2,
        "e2e_request_latency_seconds_count": 2,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "request_queue_time_seconds_count": 2,
        "engine_choices_running": 0,
        "engine_choices_waiting": 0,
        "engine_steps_total": 8,
        "prefix_cache_queries_total": 2 * prompt,
        "kv_cache_used_tokens": 0,
    }
    assert {name: scraped(server, name, **MODEL) for name in answers} == answers
    assert scraped(server, "kv_cache_tokens", **MODEL) is None  # this engine does not know
    assert scraped(server, "answers_total", **MODEL, outcome="finished") == 2
    assert scraped(server, "request_success_total", **MODEL, finished_reason="stop") == 4
    states = [scraped(server, "model_state", **MODEL, state=s) for s in ("ready", "failed")]
    assert states == [1, 0]
    labels = {"method": "POST", "route": "/chat/completions", "status": "200"}
    assert scraped(server, "http_requests_total", **labels, model_name="scripted") == 2
    assert scraped(server, "http_requests_in_progress") == 1  # this one


def test_times_between_tokens() -> None:
    """Three of a choice's four tokens come behind another."""
    inline = InlineBackend(ScriptedEngine(["a", "b", "c"]))
    with serve(scripted_config(), plugins_with(scripted=lambda settings: inline)) as server:
        server.http.post("/v1/completions", json={"prompt": "x", "n": 2})
        assert scraped(server, "inter_token_latency_seconds_count", **MODEL) == 6
        assert scraped(server, "engine_steps_total", **MODEL) is None


@pytest.mark.wing("kobold", "ollama")
def test_labels_are_never_what_clients_send(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["a"])
    server.http.post("/v1/chat/completions", json={**CHAT, "model": "s3cret"})
    server.http.get("/s3cret?s3cret")
    server.http.get("/v1/models/s3cret")
    server.http.request("PROPFIND", "/v1/models")
    for path in ("/api/generate", "/api/v1/generate"):
        server.http.post(path, json={"model": "s3cret", "prompt": "x"})
    text = server.http.get("/metrics").text
    assert "s3cret" not in text.lower()
    for method, route, status in (
        ("POST", "/chat/completions", "404"),
        ("GET", "other", "404"),
        ("GET", "/models/{model_id:path}", "404"),
        ("other", "/models", "405"),
        ("POST", "/api/generate", "404"),
        ("POST", "/api/v1/generate", "404"),
    ):
        labels = {"method": method, "route": route, "status": status, "model_name": ""}
        assert scraped(server, "http_requests_total", **labels) == 1, route


def test_adapters_count_for_their_model(serve_scripted: ServeScripted) -> None:
    class Adapted(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__(["a"])
            self.info = replace(self.info, adapters=("tuned",))

    plugins = plugins_with(scripted=engine_backend(Adapted))
    with serve(scripted_config(), plugins) as server:
        server.http.post("/v1/chat/completions", json={**CHAT, "model": "tuned"})
        assert scraped(server, "answers_total", **MODEL, outcome="finished") == 1
        labels = {"method": "POST", "route": "/chat/completions", "status": "200"}
        assert scraped(server, "http_requests_total", **labels, model_name="scripted") == 1


def test_an_engine_that_models_share_is_counted_once() -> None:
    config = scripted_config()
    other = config.models[0].model_copy(update={"name": "other", "like": "scripted"})
    config.models.append(other)
    plugins = plugins_with(scripted=engine_backend(lambda: ScriptedEngine(["a"])))
    with serve(config, plugins) as server:
        body = {**CHAT, "model": "other"}
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        server.run(server.app.state.services.models.find("other").served().backend.ping())
        steps = scraped(server, "engine_steps_total", **MODEL)
        assert steps
        assert scraped(server, "model_memory_bytes", kind="ram", **MODEL)
        mine = {**MODEL, "model_name": "other"}
        assert scraped(server, "engine_steps_total", **mine) is None
        assert scraped(server, "model_memory_bytes", kind="ram", **mine) is None
        assert scraped(server, "prompt_tokens_total", **mine)


def test_answers_that_fail() -> None:
    class Refusing(ScriptedEngine):
        def add_request(self, request: GenerationRequest) -> None:
            raise InvalidRequestError("no")

    plugins = plugins_with(scripted=engine_backend(lambda: Refusing(["a"])))
    with serve(scripted_config(), plugins) as server:
        assert server.http.post("/v1/chat/completions", json=CHAT).status_code == 400
        assert scraped(server, "answers_total", **MODEL, outcome="failed") == 1
        assert scraped(server, "prompt_tokens_total", **MODEL) == 0
        assert scraped(server, "time_to_first_token_seconds_count", **MODEL) == 0


def test_embeddings_and_reranking_count_their_prompts() -> None:
    class Embeds(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__(["a"])
            self.info = replace(self.info, embedding_size=1)

        def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
            return [[1.0] for _ in prompts]

    with serve(scripted_config(), plugins_with(scripted=engine_backend(Embeds))) as server:
        assert server.http.post("/v1/embeddings", json={"input": "four"}).status_code == 200
        assert scraped(server, "prompt_tokens_total", **MODEL) == 4
        assert scraped(server, "num_requests_running", **MODEL) == 0
        body = {"query": "abc", "documents": ["de", "f"]}
        assert server.http.post("/v1/rerank", json=body).status_code == 200
        assert scraped(server, "prompt_tokens_total", **MODEL) == 4 + 3 + 2 + 1
        assert scraped(server, "num_requests_running", **MODEL) == 0


@pytest.mark.parametrize(
    ("metrics", "host", "statuses"),
    [
        ("on", "127.0.0.1", (401, 200)),
        ("on", "::1", (401, 200)),
        ("on", "localhost", (401, 200)),
        ("on", "0.0.0.0", (401, 200)),
        ("on", "example.org", (401, 200)),
        ("keyed", "127.0.0.1", (401, 200)),
        ("off", "127.0.0.1", (401, 404)),
    ],
)
def test_who_may_scrape(
    serve_scripted: ServeScripted, metrics: str, host: str, statuses: tuple[int, int]
) -> None:
    settings = {"metrics": metrics, "host": host, "api_keys": ["key"]}
    server = serve_scripted(["a"], server=settings)
    answers = [
        server.http.get("/metrics", headers=headers).status_code
        for headers in ({}, {"Authorization": "Bearer key"})
    ]
    assert tuple(answers) == statuses


def test_histograms() -> None:
    histogram = Histogram((1, 2.5))
    for value, times in ((0.5, 1), (1, 2), (2, 1), (9, 3)):
        histogram.observe(value, times)
    assert histogram.buckets == [("1.0", 3), ("2.5", 4), ("+Inf", 7)]
    assert histogram.sum == 0.5 + 2 + 2 + 27


def test_tokens_that_come_together_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices, of which one gains four tokens at once a second after its first."""
    now = 100.0
    monkeypatch.setattr("enginebay.chat.answer.usage.monotonic", lambda: now)
    usage = UsageCounter(99.5)
    model = ModelCounts(lambda: now)
    answer = AnswerCounts(model, usage)

    def gain(choice: int, tokens: Sequence[int]) -> None:
        usage.add(Delta(index=choice, token_ids=tuple(tokens)))
        answer.add(choice, len(tokens), None)

    gain(0, [1])
    gain(1, [1])
    now = 101.0
    gain(0, [1, 2, 3, 4])
    assert model.time_to_first_token.sum == 0.5
    assert model.inter_token_latency.sum == 1.0
    assert dict(model.inter_token_latency.buckets)["+Inf"] == 4
    assert dict(model.inter_token_latency.buckets)["0.2"] == 0
    assert dict(model.inter_token_latency.buckets)["0.3"] == 4
    assert model.generation_tokens == 6
    assert model.progress_at == 101.0
