"""Runs one answer: requests go out through the `generate` hook, updates come back.

Chat and text completions, streaming or not, all read the same updates.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import copy_context
from dataclasses import fields, replace
from functools import partial
from time import monotonic

from enginebay.chat.answer.capture import Capture
from enginebay.chat.answer.collector import Collector
from enginebay.chat.answer.counts import AnswerCounts, ModelCounts, Outcome
from enginebay.chat.answer.delta_reader import DeltaReader, DirectDelivery, DirectSink
from enginebay.chat.answer.recipe import CollectorRecipe
from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.answer.scoped_stops import stopped, without_scope
from enginebay.chat.answer.thought_end import ThoughtEnd
from enginebay.chat.answer.time_limit import MAX_SECONDS, LimitedTime, TimeLimit
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.errors import (
    InvalidRequestError,
    KeyRevokedError,
    NotReasoningError,
    RequestCancelledError,
    ServingError,
    UnsupportedParameterError,
)
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import (
    Delta,
    GenerationRequest,
    Update,
)
from enginebay.engine.streams import EngineStream
from enginebay.models.served import ServedModel
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)


class Generation:
    """One answer: `n` choices for each of its requests, numbered through.

    `running` is the HTTP request that it answers; it is updated with the progress. `counts` are its
    model's. With `prompt_only` nothing is returned: engines generate at least one token, which is
    dropped. `log_text`: log the text itself, not only its length. `constrained_by`: the field of
    the body that a constraint comes from, for errors that only the engine finds in it.
    `recipe`: how its text is parsed. `capture`: where it is recorded. `time_limit`: how long the
    choices of each request may take. `thought_end`: how their thought can be ended by force.
    """

    def __init__(
        self,
        plugins: Plugins,
        model: ServedModel,
        requests: Sequence[GenerationRequest],
        recipe: CollectorRecipe,
        running: RunningRequest,
        *,
        counts: ModelCounts,
        prompt_only: bool = False,
        log_text: bool = False,
        constrained_by: str | None = None,
        capture: Capture | None = None,
        time_limit: TimeLimit | None = None,
        thought_end: ThoughtEnd | None = None,
    ) -> None:
        self.model = model
        self.requests = requests
        used = running.account.of(model.config.name)
        self.counter = UsageCounter(running.received, used)
        self._model_counts = counts
        self._running = running
        running.counter, running.choices = self.counter, self.choices
        running.end_reasoning = self.end_reasoning
        self._counts = AnswerCounts(counts, self.counter)
        self._from_engine: tuple[EngineStream, DeltaReader] | None = None
        self._prompt_only = prompt_only
        self._constrained_by = constrained_by
        self._texts: list[list[str]] | None = (
            [[] for _ in range(self.choices)] if log_text else None
        )
        self._plugins = plugins
        self._recipe = recipe
        self._capture = capture
        self._time_limit = time_limit
        self._thought_end = thought_end
        self._collectors: list[Collector] = []

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return sum(request.n for request in self.requests)

    async def end_reasoning(self) -> int:
        """End the thought of all choices now; how many were thinking.

        They go on with their content. `NotReasoningError` if none was, or it cannot be ended.
        """
        if self._thought_end is None:
            raise NotReasoningError(
                "its thought cannot be ended: the model has no reasoning format with an end tag, "
                "another server answers, or the engine cannot force tokens"
            )
        backend = self.model.backend
        budget = await self._thought_end.budget(backend, 0)
        try:
            ended = [await backend.end_reasoning(each.request_id, budget) for each in self.requests]
        except UnsupportedParameterError as error:
            raise NotReasoningError(error.message) from error
        if not any(ended):
            raise NotReasoningError("none of its choices is thinking now")
        return sum(ended)

    def send_directly(self, sink: DirectSink[Update]) -> None:
        """Send what arrives from now on through `sink` where it can be, see `DirectDelivery`.

        To be called while `updates` are read, with all that has been read sent; what is logged is
        about the request of the calling task.
        """
        if self._from_engine:
            stream, reader = self._from_engine
            delivery = DirectDelivery(reader, self._running, sink)
            stream.hand_over(partial(copy_context().run, delivery))  # type: ignore[call-arg]

    @asynccontextmanager
    async def updates(self) -> AsyncIterator[AsyncGenerator[Update, None]]:
        """Updates of all choices as they arrive. Leaving the block aborts what is running.

        Each request waits for its turn. When the answer is cancelled after that, also by a server
        that stops, its choices end as they are, with the `finish_reason` "abort". All else that
        ends them early is raised, since clients know no such value: `ModelUnloadedError` if the
        model is unloaded, `KeyRevokedError` if the key was revoked.
        """
        self._log_request()
        first = 0
        streams: list[AsyncGenerator[Update, None]] = []
        for request in self.requests:
            self.counter.add_prompt(request)
            streams.append(self._run(request, first))
            first += request.n
        outcome: Outcome = "aborted"
        error_text = ""
        try:
            with self._model_counts.working():
                async with aclosing(merge(streams)) as updates:
                    yield updates
            outcome = "cancelled" if self._running.cancelled else "finished"
        except Exception as error:
            outcome, error_text = "failed", f": {error}"
            if not isinstance(error, ServingError):
                self._plugins.blame(error, "generate")
            raise
        finally:
            self._from_engine = None  # which refers to whoever sends, who refers to this
            outcome = self._at_the_end(outcome)
            self._running.ended = self._why(outcome)
            self._counts.end(outcome)
            if self._capture:
                self._capture.end(outcome)
            self._log_answer(self._running.ended + error_text)

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """The outcome, also of an answer that its reader closes after the last update."""
        complete = self._counts.finish_reasons.total() == self.choices
        return "finished" if outcome == "aborted" and complete else outcome

    def _why(self, outcome: Outcome) -> str:
        """Why the answer has ended: the reasons of its choices, or that nobody reads it."""
        if outcome == "aborted":
            return "aborted: the client has left"
        reasons = self._counts.finish_reasons
        if outcome != "finished" or not reasons:
            return outcome
        texts = [name if self.choices == 1 else f"{n} {name}" for name, n in reasons.items()]
        return f"finished: {', '.join(texts)}"

    def _log_request(self) -> None:
        request = self.requests[0]
        neutral = SamplingParams()
        params = {
            field.name: value
            for field in fields(SamplingParams)
            if (value := getattr(request.sampling, field.name)) != getattr(neutral, field.name)
        }
        if constraint := params.get("constraint"):
            params["constraint"] = type(constraint).__name__
        logger.info(
            "%s %s: %d prompts for %s, %d choices, priority %d, sampling %.1000s",
            self.model.name,
            request.request_id,
            len(self.requests),
            self.model.config.path,
            self.choices,
            request.priority,
            params,
        )

    def _log_answer(self, outcome: str) -> None:
        usage = self.counter.usage
        calls = sum(collector.tool_calls for collector in self._collectors)
        format = f" in the format {self._recipe.tools}" if self._recipe.tools else ""
        logger.info(
            "%s %s: %d prompt and %d completion tokens, %s%s",
            self.model.name,
            self.requests[0].request_id,
            usage.prompt_tokens,
            usage.completion_tokens,
            f"{calls} tool calls{format}, " if calls else "",
            outcome,
        )
        for index, pieces in enumerate(self._texts or ()):
            request_id = self.requests[0].request_id
            logger.info("%s answers in choice %d: %r", request_id, index, "".join(pieces))

    async def _run(self, request: GenerationRequest, first: int) -> AsyncGenerator[Update, None]:
        formats = self._plugins.reasoning, self._plugins.tools
        collectors = {index: self._recipe.collector(*formats) for index in range(request.n)}
        self._collectors += collectors.values()
        reader = DeltaReader(
            first,
            collectors,
            self.counter,
            self._counts,
            prompt_only=self._prompt_only,
            capture=self._capture,
            texts=self._texts,
        )
        aborted = False
        timed = LimitedTime(self._time_limit, request.n) if self._time_limit else None
        asked = monotonic()
        try:
            async with (
                self._running.turn(
                    self.model,
                    request.n,
                    prompt_tokens=len(request.prompt_token_ids),
                    priority=request.priority,
                ),
                aclosing(self._generate(request)) as generated,
                aclosing(timed.deltas(generated) if timed else generated) as deltas,
            ):
                self._model_counts.queue_time.observe(monotonic() - asked)
                simple = len(self.requests) == 1 and not (self._prompt_only or self._capture)
                if simple and isinstance(deltas, EngineStream):
                    self._from_engine = deltas, reader
                with self._running.interruptible() as waiting:
                    async for delta in deltas:
                        if update := reader.read(delta):
                            waiting.waits = False
                            yield update
                            waiting.resume()
        except InvalidRequestError as error:
            if error.param == "constraint":
                error.param = self._constrained_by
            raise
        except KeyRevokedError:
            raise
        except RequestCancelledError:
            if self._running.state != "running":
                raise
            aborted = True
        except SystemExit as error:  # it would end the server
            raise RuntimeError(f"a plugin or a backend exited: {error!r}") from error
        end = Delta(finish_reason="stop")  # of a backend that forgot to say so
        if timed and timed.passed:
            end = Delta(finish_reason="length", stop_reason=MAX_SECONDS)
        for update in reader.ends(end, aborted=aborted):
            yield update

    def _generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        # Only now: while a request waits, other LoRAs may have been loaded.
        request = replace(request, adapter=self.model.applied_adapter)
        params, backend = request.sampling, self.model.backend
        if params.stop_scope is None or "stop_scope" not in self.model.info.unsupported:
            return self._plugins.generate(backend, request)
        deltas = self._plugins.generate(backend, without_scope(request))
        return stopped(deltas, params, request.n)


def merge(streams: Sequence[AsyncGenerator[Update, None]]) -> AsyncGenerator[Update, None]:
    """Updates of several streams in order of arrival. The first error ends all of them."""
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(streams: Sequence[AsyncGenerator[Update, None]]) -> AsyncGenerator[Update, None]:
    arrived: asyncio.Queue[Update | Exception | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[Update, None]) -> None:
        try:
            async with aclosing(stream):
                async for update in stream:
                    arrived.put_nowait(update)
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            match await arrived.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case Update() as update:
                    yield update
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
