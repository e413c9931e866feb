"""A request to a plugin's route, and the answers that are run for it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar

from fastapi import Request

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.contract.routes import GeneratedAnswer, RouteRequest
from enginebay.contract.types import TokenCounts, Update
from enginebay.models.permissions import listed
from enginebay.server.http.headers import answer_headers, ignored_header
from enginebay.server.http.request_id import request_id
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.answer import OpenAIAnswer
from enginebay.serving.classify import classify
from enginebay.serving.embed import embed
from enginebay.serving.pooling import Pooled, Pooling
from enginebay.serving.rerank import rerank, score
from enginebay.serving.schemas.classify_bodies import ClassifyRequest
from enginebay.serving.schemas.embedding_bodies import EmbeddingRequest
from enginebay.serving.schemas.rerank_bodies import RerankRequest, ScoreRequest

Body = TypeVar("Body")


class Dumped(Protocol):
    """The body of an answer."""

    def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, Any]:
        """As pydantic has it."""


class PluginRequest(RouteRequest):
    """A request to a plugin's route."""

    def __init__(self, http: Request, body: bytes) -> None:
        self._running = running_request(http)
        self._services = services(http)
        self._headers: dict[str, str] = {}
        self._ignored: list[str] = []
        self.id = request_id(http)
        self.method = http.method
        self.path = http.scope["path"]
        self.path_params = {name: str(value) for name, value in http.path_params.items()}
        self.query = dict(http.query_params)
        self.headers = {name.lower(): value for name, value in http.headers.items()}
        self.key = self._running.key_name
        self.body = body

    def models(self) -> list[str]:
        models = self._services.models
        there = listed(self._running.key, models)
        there.sort(key=lambda model: model is not models.default)
        return [model.name for model in there]

    async def chat(self, body: Mapping[str, Any], *, id: str | None = None) -> "PluginAnswer":
        asked = read_body(ChatCompletionRequest, body)
        answer = await self._services.serving.chat(asked, self._running, id=id)
        return await self._kept(answer)

    async def complete(self, body: Mapping[str, Any], *, id: str | None = None) -> "PluginAnswer":
        asked = read_body(CompletionRequest, body)
        return await self._kept(
            await self._services.serving.completion(asked, self._running, id=id)
        )

    async def embed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._pooled(embed, read_body(EmbeddingRequest, body))

    async def rerank(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._pooled(rerank, read_body(RerankRequest, body))

    async def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._pooled(score, read_body(ScoreRequest, body))

    async def classify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._pooled(classify, read_body(ClassifyRequest, body))

    @property
    def response_headers(self) -> dict[str, str]:
        """Its id, and what has to be said of what was run for it."""
        ignored = list(dict.fromkeys(self._ignored))
        return {"X-Request-Id": self.id, **self._headers, **ignored_header(ignored)}

    async def _pooled(
        self,
        answer: Callable[[Pooling, Body, RunningRequest], Awaitable[Pooled[Dumped]]],
        body: Body,
    ) -> dict[str, Any]:
        pooled = await answer(self._services.serving.pooling, body, self._running)
        self._ignored += pooled.ignored
        return pooled.body.model_dump(mode="json", exclude_none=True)

    async def _kept(self, answer: OpenAIAnswer) -> "PluginAnswer":
        self._headers |= answer_headers(answer)
        self._ignored += answer.plan.ignored
        kept = PluginAnswer(answer)
        await self._running.hold(aclosing(kept))
        return kept


class PluginAnswer(GeneratedAnswer):
    """An answer as plugins read it; what has been read in part is closed with the request."""

    def __init__(self, answer: OpenAIAnswer) -> None:
        self._answer = answer
        self._read: list[AsyncGenerator[Any, None]] = []

    async def aclose(self) -> None:
        """Abort what a handler has left without closing it."""
        for each in self._read:
            with suppress(RuntimeError):  # of one that another task is just reading
                await each.aclose()

    @property
    def id(self) -> str:
        return self._answer.id

    @property
    def model(self) -> str:
        return self._answer.plan.model.name

    @property
    def ignored(self) -> Sequence[str]:
        return self._answer.plan.ignored

    @property
    def usage(self) -> TokenCounts:
        usage = self._answer.usage
        return TokenCounts(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )

    def updates(self) -> AsyncGenerator[Update, None]:
        self._read.append(updates := self._answer.updates())
        return updates

    def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        self._read.append(chunks := self._chunks())
        return chunks

    async def _chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._answer.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk.model_dump(mode="json", exclude_unset=True)

    async def whole(self) -> dict[str, Any]:
        return (await self._answer.whole()).model_dump(mode="json", exclude_unset=True)
