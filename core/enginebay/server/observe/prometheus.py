"""`/metrics`: metrics in Prometheus format."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from enginebay.chat.answer.counts import Counts, ModelCounts
from enginebay.chat.answer.histogram import Histogram
from enginebay.chat.answer.running import RunningRequests
from enginebay.contract.errors import ServingError
from enginebay.contract.types import EngineStats
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.memory_limits import Holder, holders
from enginebay.models.loading.state import State
from enginebay.models.registry import Models

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("model_name", "backend")

_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelCounts], Histogram]], ...] = (
    (
        "time_to_first_token_seconds",
        "Time from a request's arrival to the first token of its answer.",
        lambda counts: counts.time_to_first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Time between two tokens of a choice.",
        lambda counts: counts.inter_token_latency,
    ),
    (
        "request_queue_time_seconds",
        "Time that requests waited in the queue.",
        lambda counts: counts.queue_time,
    ),
    (
        "e2e_request_latency_seconds",
        "Time from a request's arrival to the end of its answer.",
        lambda counts: counts.request_latency,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[ModelCounts], float]], ...] = (
    ("prompt_tokens", "Prompt tokens, including cached ones.", lambda c: c.prompt_tokens),
    ("cached_prompt_tokens", "Prompt tokens found in the cache.", lambda c: c.cached_tokens),
    ("generation_tokens", "Generated tokens.", lambda c: c.generation_tokens),
)
_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float | None]], ...] = (
    ("engine_choices_running", "Choices being computed by the engine.", lambda s: s.running),
    ("engine_choices_waiting", "Choices waiting in the engine.", lambda s: s.waiting),
    ("kv_cache_used_tokens", "KV cache tokens in use by running choices.", lambda s: s.kv_used),
    ("kv_cache_tokens", "KV cache capacity in tokens.", lambda s: s.kv_total),
    (
        "saved_kv_ram_bytes",
        "Bytes of saved sequences in the engine's RAM.",
        lambda s: s.saved_ram,
    ),
    (
        "saved_kv_disk_bytes",
        "Bytes of the model's saved sequences on disk.",
        lambda s: s.saved_disk,
    ),
    (
        "kv_cache_usage_perc",
        "Share of the KV cache in use by running choices, 0 to 1.",
        lambda s: s.kv_usage,
    ),
)
_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float | None]], ...] = (
    ("engine_steps", "Engine steps.", lambda s: s.steps),
    ("num_preemptions", "Preempted choices.", lambda s: s.preempted),
    ("prefix_cache_queries", "Tokens looked up in the prefix cache.", lambda s: s.cache_queries),
    ("prefix_cache_hits", "Tokens found in the prefix cache.", lambda s: s.cache_hits),
    ("saved_kv_sequences", "Sequences saved to RAM or disk.", lambda s: s.sequences_saved),
    (
        "saved_kv_restored_tokens",
        "Tokens of prompts that came from saved sequences.",
        lambda s: s.tokens_restored,
    ),
    ("spec_decode_num_draft_tokens", "Draft tokens proposed.", lambda s: s.drafted),
    ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", lambda s: s.accepted),
)


class Metrics(Collector):
    """Counts of all models, and the text that Prometheus reads.

    Numbers are kept where they arise and read when somebody asks, both on the event loop. Labels
    are names of the config and of routes, never what clients send. Where vLLM has a metric, it has
    vLLM's name (https://docs.vllm.ai/en/latest/usage/metrics.html), but for the prefix.
    """

    def __init__(
        self,
        models: Models,
        requests: RunningRequests,
        counts: Counts,
    ) -> None:
        self._models = models
        self._requests = requests
        self._counts = counts
        self._answered: Counter[tuple[str, str, str, str]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_response(self, method: str, route: str, status: int, model: str | None) -> None:
        """Count an HTTP response; `model` is None, or the name of a model or an adapter."""
        self._answered[method, route, str(status), self._configured(model)] += 1

    def register(self, collector: Collector) -> None:
        """Add another collector."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """All of it, of the type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when there is something of them."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        models = [(model, self._counts.of(model.name)) for model in self._models.all()]
        yield from self._of_requests()
        yield from _of_models(models)
        yield from _of_engines(holders(self._models.all()))

    def _configured(self, name: str | None) -> str:
        if name is None:
            return ""
        try:
            return self._models.find(name).config.name
        except ServingError:
            return ""

    def _of_requests(self) -> Iterator[Metric]:
        responses = CounterMetricFamily(
            "enginebay:http_requests",
            "HTTP responses by route and status.",
            labels=("method", "route", "status", "model_name"),
        )
        for labels, count in self._answered.items():
            responses.add_metric(labels, count)
        yield responses
        yield GaugeMetricFamily(
            "enginebay:http_requests_in_progress",
            "HTTP requests in progress.",
            value=len(self._requests),
        )


_Models = Sequence[tuple[ModelEntry, ModelCounts]]


def _of_models(models: _Models) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "enginebay:model_state", "1 for the state a model is in.", labels=(*_LABELS, "state")
    )
    running = GaugeMetricFamily(
        "enginebay:num_requests_running",
        "Choices admitted to the engine.",
        labels=_LABELS,
    )
    waiting = GaugeMetricFamily(
        "enginebay:num_requests_waiting", "Requests waiting in the queue.", labels=_LABELS
    )
    answers = CounterMetricFamily(
        "enginebay:answers", "Finished answers, by outcome.", labels=(*_LABELS, "outcome")
    )
    choices = CounterMetricFamily(
        "enginebay:request_success",
        "Choices that finished without an abort, by finish_reason.",
        labels=(*_LABELS, "finished_reason"),
    )
    for model, counts in models:
        labels = _labels(model)
        for state in get_args(State):
            states.add_metric((*labels, state), model.state == state)
        running.add_metric(labels, model.running)
        waiting.add_metric(labels, model.waiting)
        for outcome, count in counts.outcomes.items():
            answers.add_metric((*labels, outcome), count)
        for reason, count in counts.finish_reasons.items():
            choices.add_metric((*labels, reason), count)
    yield from (states, running, waiting, answers, choices)
    for name, help, value in _COUNTERS:
        counter = CounterMetricFamily(f"enginebay:{name}", help, labels=_LABELS)
        for model, counts in models:
            counter.add_metric(_labels(model), value(counts))
        yield counter
    for name, help, histogram in _HISTOGRAMS:
        family = HistogramMetricFamily(f"enginebay:{name}", help, labels=_LABELS)
        for model, counts in models:
            values = histogram(counts)
            family.add_metric(_labels(model), values.buckets, values.sum)
        yield family


def _of_engines(held: Sequence[Holder]) -> Iterator[Metric]:
    """The engines' own numbers; unknown ones are left out.

    Models that share one would count it several times, so it has the name of the first of them.
    """
    memory = GaugeMetricFamily(
        "enginebay:model_memory_bytes", "Measured memory.", labels=(*_LABELS, "kind")
    )
    known: list[tuple[tuple[str, str], EngineStats]] = []
    for holder in held:
        labels, started = _labels(holder.models[0]), holder.started
        if use := holder.models[0].memory:
            memory.add_metric((*labels, "ram"), use.ram)
            memory.add_metric((*labels, "gpu"), use.gpu)
        if stats := started.backend.stats:
            known.append((labels, stats))
    yield memory
    kinds = ((GaugeMetricFamily, _ENGINE_GAUGES), (CounterMetricFamily, _ENGINE_COUNTERS))
    for kind, metrics in kinds:
        for name, help, value in metrics:
            family = kind(f"enginebay:{name}", help, labels=_LABELS)
            for labels, stats in known:
                if (number := value(stats)) is not None:
                    family.add_metric(labels, number)
            yield family


def _labels(model: ModelEntry) -> tuple[str, str]:
    return model.config.name, model.config.backend
