"""A model that runs on another server, which gets the messages of chats."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from enginebay import (
    Backend,
    BackendSettings,
    BackendUnavailableError,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    ModelUnloadedError,
    TokenCounts,
)
from enginebay_remote.chat_dialects import CHAT_DIALECTS, ChatDialect
from enginebay_remote.chat_probe import FIELDS, PATH, ChatProbe
from enginebay_remote.chat_reading import ChatReader, says_something
from enginebay_remote.connecting import connect
from enginebay_remote.failures import NONSENSE
from enginebay_remote.health import Sleep
from enginebay_remote.options import Options
from enginebay_remote.pool import Affinity

_NONSENSE = "the remote server says what is no chat completion"
_FORMS = ("response_format", "structured_outputs")


class ChatBackend(Backend):
    """Sends messages to `/v1/chat/completions` of the server at `settings.path`, or of one of
    several.

    The server renders its chat template and reads reasoning and tool calls; they are passed on.
    """

    elsewhere = True

    def __init__(
        self,
        settings: BackendSettings,
        sleep: Sleep = asyncio.sleep,
        affinity: Affinity | None = None,
    ) -> None:
        self._options: Options = settings.options or Options()
        self._servers = connect(settings, sleep, affinity)
        self._closed = False
        self._model = ""
        self._dialect: ChatDialect = CHAT_DIALECTS["other"]
        self._known: frozenset[str] = frozenset()

    @property
    def unavailable(self) -> str | None:
        return self._servers.unavailable

    async def start(self) -> ModelInfo:
        facts = await self._servers.start(ChatProbe(self._options))
        self._model = facts.model
        self._dialect = CHAT_DIALECTS[facts.server]
        self._known = facts.honours
        return ModelInfo(
            context_length=facts.context_length,
            vocab_size=0,
            chats=True,
            modalities=facts.modalities,
            max_batch_size=self._servers.slots,
            unsupported=FIELDS - facts.honours,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")
        if request.n == 1 or self._dialect.several:
            async with aclosing(self._answer(ChatReader(request), request)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        used: TokenCounts | None = None
        for index in range(request.n):  # a server that makes one choice is asked for each
            one = _choice(request, index)
            reader = ChatReader(one, first=index, so_far=used)
            async with aclosing(self._answer(reader, one)) as deltas:
                async for delta in deltas:
                    yield delta
            used = reader.usage

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise InvalidRequestError("the tokenizer of this model is elsewhere", param="model")

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        raise InvalidRequestError("the tokenizer of this model is elsewhere", param="model")

    async def close(self) -> None:
        self._closed = True
        await self._servers.close()

    async def _answer(
        self, reader: ChatReader, request: GenerationRequest
    ) -> AsyncGenerator[Delta, None]:
        body = self._dialect.body(request, self._known) | {"model": self._model}
        body |= self._options.extra_body
        body = {name: value for name, value in body.items() if value is not None}
        events = self._servers.events(
            PATH, body, request, says=lambda event: says_something(event, request)
        )
        try:
            async with aclosing(events):
                async for event in events:
                    try:
                        deltas = [*reader.deltas(event)]
                    except NONSENSE:
                        await events.athrow(BackendUnavailableError(_NONSENSE))
                    for delta in deltas:
                        yield delta
        except BackendUnavailableError:
            self._require_open()
            if reader.unfinished:  # else all is there but the mark of its end
                raise
        except InvalidRequestError as error:
            if error.param and error.param.startswith(_FORMS):
                error.param = "constraint"  # which becomes what the client calls it
            raise
        except Exception:
            self._require_open()
            raise
        for delta in reader.finish():
            yield delta

    def _require_open(self) -> None:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")


def _choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The request for one of several choices, with a seed of its own."""
    seed = request.sampling.seed
    sampling = replace(request.sampling, seed=None if seed is None else seed + index)
    return replace(request, n=1, request_id=f"{request.request_id}-{index}", sampling=sampling)
