"""A model that runs on another server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from enginebay import (
    Backend,
    BackendSettings,
    BackendUnavailableError,
    ContextLengthExceededError,
    Delta,
    GenerationRequest,
    ModelInfo,
    ModelUnloadedError,
    SamplingParams,
)
from enginebay_remote.completion_probe import PATH, CompletionProbe
from enginebay_remote.connecting import connect
from enginebay_remote.dialects import DIALECTS, Dialect
from enginebay_remote.facts import Facts
from enginebay_remote.failures import NONSENSE
from enginebay_remote.health import Sleep
from enginebay_remote.options import Options
from enginebay_remote.pool import Affinity
from enginebay_remote.reading import Reader, Source, says_something
from enginebay_remote.tokens import LocalTokens, RemoteTokens, Tokens

_NONSENSE = "the remote server says what is no completion"
_FIELDS = frozenset(SamplingParams.__dataclass_fields__)


class RemoteBackend(Backend):
    """Sends prompts as token ids to `/v1/completions` of the server at `settings.path`, or of one
    of several.

    Chat templates, reasoning and tool calls are Enginebay's: the remote server only completes.
    """

    elsewhere = True

    def __init__(
        self,
        settings: BackendSettings,
        sleep: Sleep = asyncio.sleep,
        affinity: Affinity | None = None,
    ) -> None:
        self._options: Options = settings.options or Options()
        self._base = settings.base
        self._servers = connect(settings, sleep, affinity)
        self._closed = False
        self._facts: Facts
        self._tokens: Tokens
        self._dialect: Dialect = DIALECTS["other"]

    @property
    def unavailable(self) -> str | None:
        return self._servers.unavailable

    async def start(self) -> ModelInfo:
        options = self._options
        local = LocalTokens(options.path_of_tokenizer(self._base)) if options.tokenizer else None
        facts = self._facts = await self._servers.start(CompletionProbe(options, local))
        self._tokens = local or RemoteTokens(self._servers, facts.server, facts.model)
        self._dialect = DIALECTS.get(facts.server, DIALECTS["other"])
        templates = dict(facts.known.chat_templates)
        return ModelInfo(
            context_length=facts.context_length,
            vocab_size=facts.known.vocab_size,
            longest_token=facts.known.longest_token,
            chat_template=templates.pop("default", None),
            chat_templates=templates,
            special_tokens=facts.known.special_tokens,
            defaults=facts.known.defaults,
            max_batch_size=self._servers.slots,
            unsupported=_FIELDS - facts.honours,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self._require_open()
        room = self._facts.context_length - len(request.prompt_token_ids)
        if room <= 0:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self._facts.context_length} tokens."
            )
        source, end = self._facts.source, self._facts.known.end_token_id
        reader = Reader(request, self._tokens, source, end)
        body = self._body(request, room)
        try:
            events = self._servers.events(PATH, body, request, says=says_something)
            async with aclosing(events):
                async for event in events:
                    try:
                        deltas = await reader.deltas(event)
                    except NONSENSE:
                        await events.athrow(BackendUnavailableError(_NONSENSE))
                    for delta in deltas:
                        yield delta
            yield reader.last()
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
        await self._servers.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ModelUnloadedError("the model was unloaded")

    def _body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        facts = self._facts
        body = self._dialect.body(request, room, facts.honours) | self._asks(facts.source)
        wanted = request.sampling.logprobs
        if "logprobs" in facts.honours and (wanted is not None or "logprobs" in body):
            body["logprobs"] = max(wanted or 0, self._dialect.least_logprobs)
            body["return_tokens_as_token_ids"] = True
        fixed = {
            "model": facts.model,
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
