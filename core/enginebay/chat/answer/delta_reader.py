"""From deltas of an engine to updates of an answer, read one by one or sent as they arrive."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from enginebay.chat.answer.capture import Capture
from enginebay.chat.answer.collector import Collector
from enginebay.chat.answer.counts import AnswerCounts
from enginebay.chat.answer.parts import text_of
from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.types import Delta, FinishReason, Update

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DirectSink(Generic[T]):
    """Sends something without waiting: `send` may be called where `ready` says so."""

    ready: Callable[[], bool]
    send: Callable[[T], None]


class DeltaReader:
    """Makes an update of each delta of one request, and counts what it brings.

    `first`: the number of the request's first choice in the answer. `prompt_only`: what is
    generated is dropped. `capture`: where it is recorded. `texts`: where that of each choice of the
    answer is kept for the log.
    """

    def __init__(
        self,
        first: int,
        collectors: Mapping[int, Collector],
        counter: UsageCounter,
        counts: AnswerCounts,
        *,
        prompt_only: bool = False,
        capture: Capture | None = None,
        texts: list[list[str]] | None = None,
    ) -> None:
        self._first = first
        self._collectors = collectors
        self._tokens = dict.fromkeys(collectors, 0)
        self._reasons = any(each.reasons for each in collectors.values())
        self._counter = counter
        self._counts = counts
        self._prompt_only = prompt_only
        self._capture = capture
        self._texts = texts

    def read(self, delta: Delta) -> Update | None:
        """What a delta comes to; None for one of a choice that has ended."""
        index = delta.index
        if delta.prefill:
            self._counts.prefill()
            return Update(self._first + index, [], prefill=delta.prefill)
        collector = self._collectors[index]
        if delta.usage:
            self._counter.take(delta.usage)
        if collector.finished:
            return None
        if self._prompt_only:
            delta = _of_the_prompt(delta)
        self._counter.add(delta)
        self._tokens[index] += len(delta.token_ids)
        update = self._update(collector, delta)
        if self._reasons:
            self._counter.set_reasoning(update.index, collector.reasoning_tokens)
        return update

    def ends(self, end: Delta, *, aborted: bool) -> Iterator[Update]:
        """The last updates of choices that have none yet: as by `end`, or aborted."""
        for index, collector in self._collectors.items():
            if not collector.finished:
                yield self._update(collector, replace(end, index=index), aborted=aborted)

    def _update(self, collector: Collector, delta: Delta, *, aborted: bool = False) -> Update:
        choice = self._first + delta.index
        parts = collector.feed(delta)
        if self._capture:
            self._capture.delta(choice, delta, parts)
        finish_reason: FinishReason | None = delta.finish_reason
        if finish_reason == "stop":
            finish_reason = collector.end
        if aborted:
            finish_reason = "abort"
        self._counts.add(choice, len(delta.token_ids), finish_reason)
        if self._texts is not None:
            self._texts[choice] += map(text_of, parts)
        return Update(
            choice,
            parts,
            finish_reason,
            delta.stop_reason,
            self._tokens[delta.index],
            delta.prompt_logprobs,
            delta.token_ids,
        )


class DirectDelivery:
    """Sends deltas through a sink as they arrive, while whoever reads them waits for the next.

    Waking its task costs as much as all else that is done for a token. `DeltaStream` calls this
    with a delta when nothing is queued, its reader waits and nothing that it could be joined to is
    on its way. Here is what the reader has to do itself:

    - all of answers that are not streams, and of a stream what comes before its first event
      (whoever sends it makes the sink then);
    - answers of several requests, which are read by several tasks, and those to which a time limit
      or a plugin has put a generator of its own before the engine's: `Generation` knows;
    - answers that are captured, or have no text but the prompt: they are rare;
    - the end of a choice, the counts of a chat, the progress with a prompt;
    - whatever comes when the request has been cancelled, when the client does not read, and when
      it has left.

    What goes wrong in here is raised to the reader.
    """

    __slots__ = ("_reader", "_running", "_sink")

    def __init__(
        self, reader: DeltaReader, running: RunningRequest, sink: DirectSink[Update]
    ) -> None:
        self._reader = reader
        self._running = running
        self._sink = sink

    def __call__(self, delta: Delta) -> bool:
        """Whether a delta has been sent."""
        if (
            delta.finish_reason
            or delta.usage
            or delta.prefill
            or self._running.cancelled
            or not self._sink.ready()
        ):
            return False
        if update := self._reader.read(delta):
            self._sink.send(update)
        return True


def _of_the_prompt(delta: Delta) -> Delta:
    """What a delta says about the prompt, without tokens that were not requested."""
    return Delta(
        index=delta.index,
        finish_reason="length" if delta.finish_reason else None,
        prefill_tokens=delta.prefill_tokens,
        cached_tokens=delta.cached_tokens,
        prompt_logprobs=delta.prompt_logprobs,
    )
