"""Per-model counters of running answers."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, time
from typing import Literal, NamedTuple

from enginebay.chat.answer.histogram import Histogram
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.types import FinishReason

Outcome = Literal["finished", "cancelled", "aborted", "failed"]

# vLLM's buckets (vllm/v1/metrics/loggers.py), in seconds, and finer ones for small models.
TIME_TO_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN_LATENCY = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
REQUEST_LATENCY = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)


_REMEMBERED = 200


class FirstToken(NamedTuple):
    """An answer began `at` (Unix time), `seconds` after its request arrived."""

    at: float
    seconds: float


class ModelCounts:
    """What one model has done since the server started, including its adapters.

    `in_flight`: answers and embeddings in progress. `progress_at`: when one of them last made
    progress, by `clock`, or when the first of them began. `first_tokens`: those of the last
    answers.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.in_flight = 0
        self.progress_at = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.finish_reasons: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN)
        self.first_tokens: deque[FirstToken] = deque(maxlen=_REMEMBERED)
        self.inter_token_latency = Histogram(INTER_TOKEN_LATENCY)
        self.queue_time = Histogram(REQUEST_LATENCY)
        self.request_latency = Histogram(REQUEST_LATENCY)

    def began(self, seconds: float) -> None:
        """An answer has its first token, this many seconds after its request arrived."""
        self.time_to_first_token.observe(seconds)
        self.first_tokens.append(FirstToken(time(), seconds))

    def progress(self) -> None:
        """Record progress for the liveness check."""
        self.progress_at = self._clock()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts the block as work in flight."""
        if not self.in_flight:
            self.progress()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class Counts:
    """The counts of all models; `clock` is theirs."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._models: dict[str, ModelCounts] = {}

    def of(self, name: str) -> ModelCounts:
        """Those of the model of that name in the config, with its adapters'."""
        counts = self._models.get(name)
        if counts is None:
            counts = self._models[name] = ModelCounts(self._clock)
        return counts


class AnswerCounts:
    """Counts one answer into its model's, by the times and tokens of `usage`.

    `finish_reasons`: those of its choices that have ended.
    """

    __slots__ = ("_counted", "_last", "_model", "_usage", "finish_reasons")

    def __init__(self, model: ModelCounts, usage: UsageCounter) -> None:
        self._model = model
        self._usage = usage
        self._last: dict[int, float] = {}  # when each choice gained something last
        self._counted = 0
        self.finish_reasons: Counter[str] = Counter()

    def prefill(self) -> None:
        """A prompt is being read."""
        self._model.progress()

    def add(self, choice: int, tokens: int, finish_reason: FinishReason | None) -> None:
        """A choice has gained tokens; several at once count as evenly spaced."""
        model = self._model
        now = model.progress_at = self._usage.last_token_at
        self._counted += tokens
        model.generation_tokens += tokens
        before = self._last.get(choice)
        if before is not None:
            times = tokens or 1
            model.inter_token_latency.observe((now - before) / times, times)
        elif not self._last:
            model.began(now - self._usage.received)
        self._last[choice] = now
        if finish_reason:
            model.finish_reasons[finish_reason] += 1
            self.finish_reasons[finish_reason] += 1

    def end(self, outcome: Outcome) -> None:
        """The answer has ended."""
        model, usage = self._model, self._usage.usage
        model.outcomes[outcome] += 1
        if self._last:  # else the prompt was never computed
            model.prompt_tokens += usage.prompt_tokens
        model.cached_tokens += usage.cached_tokens
        # Of a chat that is handed on they are known only now.
        model.generation_tokens += max(0, usage.completion_tokens - self._counted)
        model.request_latency.observe(monotonic() - self._usage.received)
