"""A server's side: a `Backend` that is all engines of a model, wherever they run."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException, RequestCancelledError

from enginebay import (
    Backend,
    BackendUnavailableError,
    Delta,
    DeltaStream,
    EngineDeadError,
    EngineStats,
    EngineStream,
    GenerationRequest,
    Lora,
    Media,
    MediaPrompt,
    MemoryUse,
    ModelInfo,
    ModelUnloadedError,
    ReasoningBudget,
    ReportBatchSize,
    ReportProgress,
    ServingError,
    block_hashes,
)
from enginebay_cluster.contract import ClusterSettings, EngineSpec, Placement
from enginebay_cluster.ray.adapters import Adapters
from enginebay_cluster.ray.asking import TRIES, Asking
from enginebay_cluster.ray.deployment import deploy, version_of
from enginebay_cluster.ray.fleets import fleet_of
from enginebay_cluster.ray.links import Call, Link, Links, cancel, first_line
from enginebay_cluster.ray.placing import BLOCK, Placer
from enginebay_cluster.ray.roster import STARTING, Roster
from enginebay_cluster.ray.sums import sum_of_memory, sum_of_stats

logger = logging.getLogger(__name__)

_LATE = 5.0
"""Seconds that the last deltas may take by the link once their request has ended."""


class RayBackend(Backend):
    """All engines of a model. `remove` is called by `close`: it ends them, unless others took over.

    A request goes to one engine, chosen by `placer`. If that is lost before it has said anything,
    the request moves to another one; what has said something fails with `EngineDeadError`.
    """

    elsewhere = True

    def __init__(
        self,
        engine: EngineSpec,
        placement: Placement,
        settings: ClusterSettings,
        *,
        find_placer: Callable[[], Awaitable[Placer]],
        remove: Callable[["RayBackend"], Awaitable[None]],
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> None:
        self._engine = engine
        self._placement = placement
        self._settings = settings
        self._find_placer = find_placer
        self._remove = remove
        self._report_progress = report_progress
        self._links: Links | None = None
        self._calls: dict[str, Call] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._roster = Roster(
            engine.name, placement, version_of(engine, settings), report_batch_size
        )
        self._closed = False
        self._choices: int | None = None

    @property
    def name(self) -> str:
        """That of the engines."""
        return self._engine.name

    @property
    def unavailable(self) -> str | None:
        return self._roster.unavailable

    @property
    def stats(self) -> EngineStats | None:
        return sum_of_stats([link.report.stats for link in self._roster.ready()])

    @property
    def memory(self) -> MemoryUse | None:
        return sum_of_memory([link.report.memory for link in self._roster.ready()])

    async def start(self) -> ModelInfo:
        await self._roster.require_node(self._report_progress)
        self._placer = await self._find_placer()
        self._report_progress(STARTING, 0.0)
        handle = await self._deploy()
        self._run = handle.options(method_name="run", stream=True)
        self._links = Links(
            handle,
            fleet_of(handle.app_name),
            self._settings.heartbeat,
            self._roster.changed,
            lambda replica: self._placer.forget(self.name, replica),
        )
        self._roster.use(self._links)
        self._asking = Asking(
            handle, self._links, lambda tried: [each.replica for each in self._require(tried)]
        )
        self._adapters = Adapters(self._asking.one)
        self._links.begin(self._adapters.load_into)
        info = await self._roster.start(self._report_progress)
        if self._placement.max_replicas is not None and info.max_batch_size:
            self._choices = info.max_batch_size
            await self._deploy()
        return replace(info, max_batch_size=self._roster.batch_size)

    async def start_again(self) -> None:
        await self._roster.require_node(self._report_progress)
        await self._deploy()
        await self._roster.start(self._report_progress)

    async def ask_again(self) -> None:
        """Have the cluster run these engines, once it has been asked for others. Never fails."""
        if self._links and not self._closed:
            try:
                await self._deploy()
            except BackendUnavailableError as error:
                logger.warning("model %s: %s", self.name, error.message)

    async def _deploy(self) -> Any:
        try:
            return await asyncio.to_thread(
                deploy, self._engine, self._placement, self._settings, self._choices
            )
        except (RayError, RayServeException, RuntimeError, ConnectionError) as error:
            raise BackendUnavailableError(
                f"the cluster did not take its engines: {first_line(error)}"
            ) from error

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """An `EngineStream`, as of an engine of this machine."""
        stream = DeltaStream()
        return EngineStream(self._generate(request, stream), stream)

    async def _generate(
        self, request: GenerationRequest, stream: DeltaStream
    ) -> AsyncGenerator[Delta, None]:
        salt = f"{request.adapter or ''}/{request.cache_salt or ''}"  # engines share no more
        hashes = block_hashes(request.prompt_token_ids, BLOCK, salt)
        tried: set[str] = set()
        while True:
            candidates = self._require(tried)
            cached = next((s.kv_total for each in candidates if (s := each.report.stats)), None)
            names = sorted(each.replica for each in candidates)
            async with self._placer.placed(self.name, hashes, request.n, names, cached) as replica:
                call = self._open(replica, request, stream)
                try:
                    async with aclosing(self._answer(request, call)) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except (EngineDeadError, BackendUnavailableError) as error:
                    tried.add(replica)
                    if call.said or len(tried) == TRIES or self._closed:
                        raise
                    logger.info(
                        "request %s moves to another engine: %s", request.request_id, error.message
                    )
                finally:
                    self._close(call)

    async def _answer(self, request: GenerationRequest, call: Call) -> AsyncGenerator[Delta, None]:
        assert self._links
        response = self._run.remote(request, self._links.server, call.number, replica=call.replica)
        watching = asyncio.create_task(self._watch(response, call))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        unfinished = request.n
        try:
            while unfinished > 0:
                for item in await call.stream.take():
                    if isinstance(item, ServingError):
                        raise item
                    unfinished -= item.finish_reason is not None
                    yield item
        finally:
            if unfinished > 0:
                watching.cancel()
                cancel(response)

    async def _watch(self, response: Any, call: Call) -> None:
        """Tell a call when its request has ended without saying so."""
        try:
            async for _ in response:
                pass
            async with asyncio.timeout(_LATE):
                await call.ended.wait()
            return
        except TimeoutError:
            reason = "the engine that answered lost a part of it"
        except RequestCancelledError:
            reason = "the engine that answered was stopped"
        except Exception as error:  # of Ray, of Serve, or of gRPC
            logger.warning("replica %s: %s", call.replica, first_line(error))
            reason = "the engine that answered is gone"
        if not call.ended.is_set():
            call.fail(reason)

    def _open(self, replica: str, request: GenerationRequest, stream: DeltaStream) -> Call:
        assert self._links
        call = self._links.open(replica, request.request_id, stream)
        self._calls[request.request_id] = call
        return call

    def _close(self, call: Call) -> None:
        assert self._links
        self._links.close(call)
        if self._calls.get(call.request_id) is call:
            del self._calls[call.request_id]

    async def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        call = self._calls.get(request_id)
        if call is None or self._links is None:
            return 0
        ended: int = await self._asking.one(
            call.replica, "end_reasoning", request_id, self._links.server, call.number, budget
        )
        return ended

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._asking.any(Backend.tokenize, text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._asking.any(Backend.detokenize, tuple(token_ids))

    async def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._asking.any(
            Backend.tokenize_plain, text, add_special_tokens=add_special_tokens
        )

    async def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        return await self._asking.any(Backend.detokenize_plain, tuple(token_ids))

    async def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        return await self._asking.any(
            Backend.tokenize_media, tuple(pieces), add_special_tokens=add_special_tokens
        )

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return await self._asking.any(Backend.embed, [tuple(prompt) for prompt in prompts])

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        return await self._asking.any(Backend.tokenize_pair, query, document)

    async def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return await self._asking.any(Backend.rerank, [tuple(pair) for pair in pairs])

    async def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return await self._asking.any(Backend.classify, [tuple(prompt) for prompt in prompts])

    async def ping(self) -> None:
        """Return when one engine has answered; Serve looks after each of them."""
        await self._asking.any(Backend.ping)

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        """Also into engines that start later."""
        await self._adapters.load(name, loras, [link.replica for link in self._roster.ready()])

    async def unload_adapter(self, name: str) -> None:
        await self._adapters.unload(name, [link.replica for link in self._roster.ready()])

    async def close(self) -> None:
        """End the engines, for all servers."""
        await self._leave("the model was unloaded")
        await self._remove(self)

    async def disconnect(self) -> None:
        await self._leave("the server stops")

    async def _leave(self, reason: str) -> None:
        self._closed = True
        self._roster.end()
        if self._links:
            await self._links.end(ModelUnloadedError(reason))

    def _require(self, tried: Collection[str]) -> list[Link]:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")
        return self._roster.require(tried)
