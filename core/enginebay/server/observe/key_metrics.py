"""Metrics with the label `key`, apart from all others: not everybody may see names of keys."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from enginebay.chat.answer.account import Used
from enginebay.server.usage.key_use import KeyUses

_COUNTERS: tuple[tuple[str, str, Callable[[Used], int]], ...] = (
    ("key_requests", "Requests of a key that used a model.", lambda used: used.requests),
    ("key_prompt_tokens", "Prompt tokens of a key, with cached ones.", lambda u: u.prompt_tokens),
    ("key_cached_prompt_tokens", "Those found in the cache.", lambda used: used.cached_tokens),
    ("key_generation_tokens", "Tokens generated for a key.", lambda u: u.completion_tokens),
)


class KeyMetrics(Collector):
    """What each key has used since the server started, counted as `/v1/usage` counts it.

    There are as many series as keys that used something, times the models that they used.
    """

    def __init__(self, uses: KeyUses) -> None:
        self._uses = uses
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All of it in Prometheus' format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: see `Metrics`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; the name of no key is empty."""
        for name, help, value in _COUNTERS:
            counter = CounterMetricFamily(f"enginebay:{name}", help, labels=("key", "model_name"))
            for key, account in self._uses:
                for model, used in account.used.items():
                    counter.add_metric((key, model), value(used))
            yield counter
