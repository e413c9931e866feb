"""A model that runs on another server, which gets the messages of chats."""

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from enginebay import (
    Backend,
    BackendSettings,
    BackendUnavailableError,
    Chat,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    ModelUnloadedError,
    TokenCounts,
    UnsupportedParameterError,
)
from enginebay_remote.chat_dialects import CHAT_DIALECTS, ChatDialect
from enginebay_remote.chat_reading import ChatReader, says_something
from enginebay_remote.dialects import ALL, TRIAL
from enginebay_remote.failures import NONSENSE
from enginebay_remote.options import Options
from enginebay_remote.servers import connect, context_length, find_card, modalities, server_of

logger = logging.getLogger(__name__)

_FIELDS = ALL | (frozenset(Chat.__dataclass_fields__) - {"messages", "chosen_params"})
_FORMS = ("response_format", "structured_outputs")
_PATH = "/v1/chat/completions"


class ChatBackend(Backend):
    """Sends messages to `/v1/chat/completions` of the server at `settings.path`.

    The server renders its chat template and reads reasoning and tool calls; they are passed on.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._options: Options = settings.options or Options()
        self._http = connect(settings)
        self._closed = False
        self._model = ""
        self._dialect: ChatDialect = CHAT_DIALECTS["other"]
        self._known: frozenset[str] = frozenset()

    @property
    def unavailable(self) -> str | None:
        return self._http.away

    async def start(self) -> ModelInfo:
        card = await find_card(self._http, self._options.model)
        self._model = str(card["id"])
        server = server_of(self._http, card, self._options)
        self._dialect = CHAT_DIALECTS[server]
        self._known = self._dialect.fields
        if server == "enginebay":
            self._known -= await self._try_params()
        logger.info("%s is served by %s at %s", self._model, server, self._http.root)
        return ModelInfo(
            context_length=context_length(card, self._options) or 0,
            vocab_size=0,
            chats=True,
            modalities=modalities(card, self._options),
            unsupported=_FIELDS - self._known,
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
        await self._http.close()

    async def _answer(
        self, reader: ChatReader, request: GenerationRequest
    ) -> AsyncGenerator[Delta, None]:
        body = self._dialect.body(request, self._known) | {"model": self._model}
        body |= self._options.extra_body
        body = {name: value for name, value in body.items() if value is not None}
        headers = {"X-Request-Id": request.request_id}
        events = self._http.events(_PATH, body, headers, says=says_something)
        try:
            async with aclosing(events):
                async for event in events:
                    for delta in reader.deltas(event):
                        yield delta
        except BackendUnavailableError:
            self._require_open()
            if reader.unfinished:  # else all is there but the mark of its end
                raise
        except InvalidRequestError as error:
            if error.param and error.param.startswith(_FORMS):
                error.param = "constraint"  # which becomes what the client calls it
            raise
        except NONSENSE as error:
            raise BackendUnavailableError(
                f"the remote server says what is no chat completion ({error!r})"
            ) from error
        except Exception:
            self._require_open()
            raise
        for delta in reader.finish():
            yield delta

    def _require_open(self) -> None:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")

    async def _try_params(self) -> frozenset[str]:
        """The sampling params that the engine of an Enginebay has no use for; it says which."""
        message = {"role": "user", "content": "Hello"}
        body: dict[str, Any] = {**TRIAL, "model": self._model, "messages": [message]}
        body |= {"max_tokens": 1, "logprobs": True, **self._options.extra_body}
        try:
            response = await self._http.ask(_PATH, body)
            named = response.headers.get("x-unsupported-params", "")
        except UnsupportedParameterError as error:  # with `strict_params`
            named = error.message
        except InvalidRequestError as error:
            logger.warning("cannot ask what the engine of %s honours: %s", self._model, error)
            return frozenset()
        return frozenset(re.findall(r"\w+", named)) & ALL


def _choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The request for one of several choices, with a seed of its own."""
    seed = request.sampling.seed
    sampling = replace(request.sampling, seed=None if seed is None else seed + index)
    return replace(request, n=1, request_id=f"{request.request_id}-{index}", sampling=sampling)
