"""`enginebay.open()`: models in this process, for Python code."""

import asyncio
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, closing
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.chat_answer import ChatCompletion, ChatCompletionChunk
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import Completion, CompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.config.load import load_config
from enginebay.config.loading import LoadingConfig
from enginebay.config.problems import ConfigError, Problem
from enginebay.config.schema import Config, resolved_path
from enginebay.contract.backend_settings import Isolation
from enginebay.contract.errors import ModelFailedError, ServingError
from enginebay.models.check_config import check_config
from enginebay.models.downloads import SCHEME, Downloads, HubName, places
from enginebay.models.files.model_folder import model_at
from enginebay.models.files.recognise import form_of
from enginebay.models.loading.entry import ReportModelProgress
from enginebay.plugins import Plugins
from enginebay.serving.answer import OpenAIAnswer
from enginebay.serving.classify import classify, score_evaluation
from enginebay.serving.embed import embed
from enginebay.serving.parts import parts_of
from enginebay.serving.pooling import Pooled, Pooling
from enginebay.serving.rerank import rerank, score
from enginebay.serving.schemas.classify_bodies import (
    ClassifyAnswer,
    ClassifyRequest,
    ScoreEvaluation,
    ScoreEvaluationRequest,
)
from enginebay.serving.schemas.embedding_bodies import EmbeddingList, EmbeddingRequest
from enginebay.serving.schemas.rerank_bodies import (
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)
from enginebay.serving.serving import Serving

Messages = str | Sequence[Mapping[str, Any]]
Body = TypeVar("Body")
Answered = TypeVar("Answered")


class LocalModel:
    """A loaded model, or those of a config, without HTTP.

    Methods take the fields of the API's bodies as keyword arguments and return its answers, made by
    the same code. `model` chooses among the models of a config, by default its first. They raise
    the `ServingError`s that clients of the server get, and warn (`UserWarning`) of fields without
    effect. All of it belongs to the event loop that opened it.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [model.name for model in self._serving.models.all()]

    async def chat(self, messages: Messages, **fields: Any) -> ChatCompletion:
        """The answer to a conversation, or to one message, as of `/v1/chat/completions`."""
        body = read_body(ChatCompletionRequest, {**_conversation(messages), **_whole(fields)})
        async with self._running("chat") as running:
            answer = await self._serving.chat(body, running)
            return cast(ChatCompletion, await _told(answer).whole())

    async def chat_stream(
        self, messages: Messages, **fields: Any
    ) -> AsyncGenerator[ChatCompletionChunk, None]:
        """The same in chunks, as they come. Closing the generator aborts the answer."""
        body = read_body(ChatCompletionRequest, {**_conversation(messages), **_streamed(fields)})
        async with self._running("chat_stream") as running:
            answer = await self._serving.chat(body, running)
            async with aclosing(_told(answer).chunks()) as chunks:
                async for chunk in chunks:
                    yield cast(ChatCompletionChunk, chunk)

    async def complete(self, prompt: str | Sequence[int], **fields: Any) -> Completion:
        """The continuation of a prompt, text or token ids, as of `/v1/completions`."""
        body = read_body(CompletionRequest, {"prompt": prompt, **_whole(fields)})
        async with self._running("complete") as running:
            answer = await self._serving.completion(body, running)
            return cast(Completion, await _told(answer).whole())

    async def complete_stream(
        self, prompt: str | Sequence[int], **fields: Any
    ) -> AsyncGenerator[Completion, None]:
        """The same in chunks, as they come. Closing the generator aborts it."""
        body = read_body(CompletionRequest, {"prompt": prompt, **_streamed(fields)})
        async with self._running("complete_stream") as running:
            answer = await self._serving.completion(body, running)
            async with aclosing(_told(answer).chunks()) as chunks:
                async for chunk in chunks:
                    yield cast(Completion, chunk)

    async def embed(self, input: str | Sequence[str], **fields: Any) -> EmbeddingList:
        """The embedding of each input, as of `/v1/embeddings`."""
        body = read_body(EmbeddingRequest, {"input": input, **fields})
        return await self._pooled("embed", embed, body)

    async def rerank(self, query: str, documents: Sequence[str], **fields: Any) -> RerankAnswer:
        """Documents by their relevance to a query, the best first, as of `/v1/rerank`."""
        body = read_body(RerankRequest, {"query": query, "documents": documents, **fields})
        return cast(RerankAnswer, await self._pooled("rerank", rerank, body))

    async def score(
        self, queries: str | Sequence[str], documents: str | Sequence[str], **fields: Any
    ) -> ScoreAnswer:
        """The relevance of each document to its query, as of `/v1/score`."""
        body = read_body(ScoreRequest, {"queries": queries, "documents": documents, **fields})
        return await self._pooled("score", score, body)

    async def classify(self, input: str | Sequence[str], **fields: Any) -> ClassifyAnswer:
        """The likeliest label of each input, as of `/v1/classify`."""
        body = read_body(ClassifyRequest, {"input": input, **fields})
        return await self._pooled("classify", classify, body)

    async def reward(self, messages: Sequence[str], **fields: Any) -> ScoreEvaluation:
        """What a reward model says of each text, as of `/v1/score/evaluation`."""
        body = read_body(ScoreEvaluationRequest, {"messages": messages, **fields})
        return await self._pooled("reward", score_evaluation, body)

    async def _pooled(
        self,
        method: str,
        answer: Callable[[Pooling, Body, RunningRequest], Awaitable[Pooled[Answered]]],
        body: Body,
    ) -> Answered:
        async with self._running(method) as running:
            pooled = await answer(self._serving.pooling, body, running)
            if pooled.ignored:
                _warn_of(pooled.ignored, stacklevel=4)
            return pooled.body

    @asynccontextmanager
    async def _running(self, method: str) -> AsyncIterator[RunningRequest]:
        running = RunningRequest(method)
        running.is_admin = True
        async with self._serving.requests.track(running):
            yield running


@asynccontextmanager
async def opened(
    path: str | PathLike[str],
    backend: str | None,
    options: Mapping[str, Any] | None,
    isolation: Isolation,
    report_progress: ReportModelProgress | None,
) -> AsyncIterator[LocalModel]:
    """What `enginebay.open` says."""
    hub_name = path if isinstance(path, str) and path.startswith(SCHEME) else ""
    path = Path(path)
    if path.suffix in (".yml", ".yaml") and not hub_name:
        if backend or options:
            raise ValueError(
                f"{path} is a config file, which gives its models' backends and options itself; "
                "`backend` and `options` are for the path of a model"
            )
        config = await asyncio.to_thread(load_config, path)
        plugins = _plugins(config)
    else:
        plugins = _plugins(Config())
        if hub_name:
            path = await _downloaded(hub_name, backend, plugins, report_progress)
        found = await asyncio.to_thread(model_at, path, plugins, backend)
        config = Config(
            models=[found.model_copy(update={"options": dict(options or {})})],
            loading=LoadingConfig(from_model_dir=False),
        )
    models = [model.model_copy(update={"isolation": isolation}) for model in config.models]
    config = config.model_copy(update={"models": models})
    if problems := await asyncio.to_thread(check_config, config, plugins):
        raise ConfigError(problems)
    parts = parts_of(config, plugins, plugins.wings.values(), for_server=False)
    serving = Serving(
        *(config, plugins, report_progress or (lambda *_: None)),
        make_gate=parts.make_gate,
        make_backend=parts.make_backend,
    )
    try:
        await serving.models.load_at_start()
        for model in serving.models.all():
            if model.state == "failed":
                raise ModelFailedError(f"model {model.name!r} could not be loaded: {model.error}")
        yield LocalModel(serving)
    finally:
        await serving.close()
        await parts.closing.aclose()


async def _downloaded(
    hub_name: str,
    backend: str | None,
    plugins: Plugins,
    report_progress: ReportModelProgress | None,
) -> Path:
    """The model of that name on a hub, in the folder `models`, where it is downloaded to."""
    try:
        name = HubName.parse(hub_name)
    except ValueError as error:
        raise ConfigError([Problem("", "", str(error))]) from error
    form = await asyncio.to_thread(form_of, backend, plugins) if backend else None

    def report(fraction: float) -> None:
        if report_progress:
            report_progress(str(name), "downloading", fraction)

    with closing(Downloads(places(Config()))) as downloads:
        try:
            return (await downloads.local(name, form, report)).path
        except ServingError as error:
            raise ModelFailedError(f"{name} could not be downloaded: {error.message}") from error


def _plugins(config: Config) -> Plugins:
    folder = Path(resolved_path(config.plugins.folder, config.base))
    return Plugins(folder=folder, blocked=config.plugins.blocked)


def _conversation(messages: Messages) -> dict[str, Any]:
    if isinstance(messages, str):
        return {"messages": [{"role": "user", "content": messages}]}
    return {"messages": messages}


def _whole(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if fields.get("stream"):
        raise TypeError("use chat_stream or complete_stream in place of `stream=True`")
    return fields


def _streamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**fields, "stream": True}


def _warn_of(ignored: Sequence[str], *, stacklevel: int) -> None:
    warnings.warn(f"without effect: {', '.join(ignored)}", stacklevel=stacklevel)


def _told(answer: OpenAIAnswer) -> OpenAIAnswer:
    """The answer, after warnings of what was asked for and is not part of it."""
    plan = answer.plan
    if plan.ignored:
        _warn_of(plan.ignored, stacklevel=4)
    for name, value in plan.clamped.items():
        warnings.warn(f"{name} was lowered to {value}", stacklevel=3)
    if plan.dropped:
        warnings.warn(f"the oldest {plan.dropped} messages were left out", stacklevel=3)
    if plan.cut:
        warnings.warn(f"{plan.cut} tokens were cut off the prompt's beginning", stacklevel=3)
    return answer
