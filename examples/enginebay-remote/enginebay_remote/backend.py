"""A model that runs on another server."""

import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

from enginebay import (
    Backend,
    BackendSettings,
    BackendUnavailableError,
    ContextLengthExceededError,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    ModelUnloadedError,
    SamplingParams,
    UnsupportedParameterError,
)
from enginebay_remote.dialects import DIALECTS, TRIAL, Dialect
from enginebay_remote.failures import NONSENSE
from enginebay_remote.options import Options, Server
from enginebay_remote.reading import Reader, Source, source_of
from enginebay_remote.servers import connect, context_length, find_card, server_of
from enginebay_remote.tokens import Known, LocalTokens, RemoteTokens, Tokens

logger = logging.getLogger(__name__)

_FIELDS = frozenset(SamplingParams.__dataclass_fields__)


class RemoteBackend(Backend):
    """Sends prompts as token ids to `/v1/completions` of the server at `settings.path`.

    Chat templates, reasoning and tool calls are Enginebay's: the remote server only completes.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._options: Options = settings.options or Options()
        self._base = settings.base
        self._http = connect(settings)
        self._closed = False
        self._model = ""
        self._context_length = 0
        self._tokens: Tokens
        self._end_token_id: int | None = None
        self._dialect: Dialect = DIALECTS["other"]
        self._known: frozenset[str] = frozenset()
        self._source: Source = "text"

    @property
    def unavailable(self) -> str | None:
        return self._http.away

    async def start(self) -> ModelInfo:
        card = await find_card(self._http, self._options.model)
        self._model = str(card["id"])
        server = server_of(self._http, card, self._options)
        self._dialect = DIALECTS.get(server, DIALECTS["other"])
        props = await self._props(server)
        self._context_length = self._room(card, props)
        known = await self._start_tokens(server, card, props)
        self._end_token_id = known.end_token_id
        prompt = await self._tokens.encode("Hello", add_special_tokens=True)
        self._known = await self._try_params(server, prompt)
        self._source = await self._try_tokens(prompt)
        if self._source == "text":
            self._known -= {"logprobs"}
            logger.warning(
                "%s tells no token ids: tokens are those of its text, tokenized again", server
            )
        logger.info("%s is served by %s at %s", self._model, server, self._http.root)
        templates = dict(known.chat_templates)
        return ModelInfo(
            context_length=self._context_length,
            vocab_size=known.vocab_size,
            longest_token=known.longest_token,
            chat_template=templates.pop("default", None),
            chat_templates=templates,
            special_tokens=known.special_tokens,
            defaults=known.defaults,
            unsupported=_FIELDS - self._known,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self._require_open()
        room = self._context_length - len(request.prompt_token_ids)
        if room <= 0:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self._context_length} tokens."
            )
        reader = Reader(request, self._tokens, self._source, self._end_token_id)
        body = self._body(request, room)
        headers = {"X-Request-Id": request.request_id}
        try:
            async with aclosing(self._http.events("/v1/completions", body, headers)) as events:
                async for event in events:
                    for delta in await reader.deltas(event):
                        yield delta
            yield reader.last()
        except NONSENSE as error:
            raise BackendUnavailableError(
                f"the remote server says what is no completion ({error!r})"
            ) from error
        except Exception as error:
            if self._closed:
                raise ModelUnloadedError("the model was unloaded") from error
            raise

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self._require_open()
        return await self._tokens.encode(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        self._require_open()
        return await self._tokens.decode(token_ids)

    async def close(self) -> None:
        self._closed = True
        await self._http.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")

    def _body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        body = self._dialect.body(request, room, self._known) | self._asks(self._source)
        wanted = request.sampling.logprobs
        if "logprobs" in self._known and (wanted is not None or "logprobs" in body):
            body["logprobs"] = max(wanted or 0, self._dialect.least_logprobs)
            body["return_tokens_as_token_ids"] = True
        fixed = {
            "model": self._model,
            "prompt": list(request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = {**body, **fixed, **self._options.extra_body}
        return {name: value for name, value in body.items() if value is not None}

    def _asks(self, source: Source) -> dict[str, Any]:
        """Fields that make the server tell token ids."""
        if source == "token_ids":
            return {"return_token_ids": True}
        return {} if source == "text" else {"logprobs": self._dialect.least_logprobs}

    async def _props(self, server: Server) -> Mapping[str, Any]:
        """What llama-server and Enginebay tell of a model: template, special tokens, context."""
        if server == "llama-server":
            return dict(await self._http.get("/props"))
        if server == "enginebay":
            return dict(await self._http.get(f"/props?{urlencode({'model': self._model})}"))
        return {}

    def _room(self, card: Mapping[str, Any], props: Mapping[str, Any]) -> int:
        """The context length."""
        of_slot = (props.get("default_generation_settings") or {}).get("n_ctx")
        said = context_length(card, self._options) or of_slot
        if not said:
            raise BackendUnavailableError(
                "the remote server does not say how long its context is (or is still loading); "
                "option `context_length` can"
            )
        return int(said)

    async def _start_tokens(
        self, server: Server, card: Mapping[str, Any], props: Mapping[str, Any]
    ) -> Known:
        """Choose the tokenizer."""
        if self._options.tokenizer:
            local = LocalTokens(self._options.path_of_tokenizer(self._base))
            self._tokens = local
            return local.known()
        self._tokens = RemoteTokens(self._http, server, self._model)
        try:
            await self._tokens.encode("Hello", add_special_tokens=True)
        except Exception as error:
            raise BackendUnavailableError(
                "the remote server has no /tokenize; give the option `tokenizer` the model's "
                f"folder, or its tokenizer.json, or set `api: chat` ({error})"
            ) from error
        vocabulary = (card.get("meta") or {}).get("n_vocab")
        template = props.get("chat_template")
        special = {name: str(props[name]) for name in ("bos_token", "eos_token") if props.get(name)}
        end = special.get("eos_token")
        ids = await self._tokens.encode(end, add_special_tokens=False) if end else []
        return Known(
            **({"vocab_size": vocabulary} if vocabulary else {}),
            chat_templates={"default": template} if template else {},
            special_tokens=special,
            end_token_id=ids[0] if len(ids) == 1 else None,
        )

    async def _try_params(self, server: Server, prompt: Sequence[int]) -> frozenset[str]:
        """The sampling params that have an effect. An Enginebay says which have none."""
        known = self._dialect.known
        if server != "enginebay":
            return known
        body = {**TRIAL, "model": self._model, "prompt": list(prompt), "max_tokens": 1}
        try:
            response = await self._http.ask("/v1/completions", body)
            named = response.headers.get("x-unsupported-params", "")
        except UnsupportedParameterError as error:  # with `strict_params`
            named = error.message
        except InvalidRequestError as error:
            logger.warning("cannot ask what the engine behind %s honours: %s", server, error)
            return known
        return known - set(re.findall(r"\w+", named))

    async def _try_tokens(self, prompt: Sequence[int]) -> Source:
        """Let the server say a token and see how it tells which. Servers may refuse to be asked."""
        body = {"model": self._model, "prompt": list(prompt), "max_tokens": 1}
        body |= self._options.extra_body
        ids = {"return_token_ids": True}
        names = {
            "logprobs": self._dialect.least_logprobs,
            "return_tokens_as_token_ids": True,
        }
        for asked in (ids | names, names) if "logprobs" in self._known else (ids,):
            try:
                response = await self._http.ask("/v1/completions", body | asked)
            except InvalidRequestError:
                continue
            return source_of((response.json().get("choices") or [{}])[0])
        return "text"
