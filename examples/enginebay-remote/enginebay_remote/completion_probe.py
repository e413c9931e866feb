"""Finds out what a server can do with prompts, and how it tells what it says."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay import BackendUnavailableError, InvalidRequestError, UnsupportedParameterError
from enginebay_remote.dialects import DIALECTS, TRIAL, Dialect
from enginebay_remote.facts import Facts
from enginebay_remote.http import Http
from enginebay_remote.options import Options, Server
from enginebay_remote.reading import Source, source_of
from enginebay_remote.servers import context_length, find_props, server_of, slots_of
from enginebay_remote.tokens import Known, LocalTokens, RemoteTokens, Tokens

logger = logging.getLogger(__name__)

PATH = "/v1/completions"
_SAMPLE = "Hello"


class CompletionProbe:
    """The facts of a model that completes prompts; `local`: its tokenizer, if it is here."""

    def __init__(self, options: Options, local: LocalTokens | None) -> None:
        self._options = options
        self._local = local

    async def __call__(self, http: Http, card: Mapping[str, Any]) -> Facts:
        """A `Probe`."""
        model = str(card["id"])
        server = server_of(http, card, self._options)
        dialect = DIALECTS.get(server, DIALECTS["other"])
        props = await find_props(http, server, model)
        room = self._room(card, props)
        tokens = self._local or RemoteTokens(http, server, model)
        known = self._local.known() if self._local else await _known(tokens, card, props)
        prompt = await tokens.encode(_SAMPLE, add_special_tokens=True)
        honours = await self._honoured(http, model, server, dialect, prompt)
        source = await self._source(http, model, dialect, prompt, logprobs="logprobs" in honours)
        if source == "text":
            honours -= {"logprobs"}
            logger.warning(
                "%s tells no token ids: tokens are those of its text, tokenized again", server
            )
        return Facts(
            model=model,
            server=server,
            context_length=room,
            honours=honours,
            source=source,
            known=known,
            sample=tuple(prompt),
            slots=slots_of(props),
        )

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

    async def _honoured(
        self, http: Http, model: str, server: Server, dialect: Dialect, prompt: Sequence[int]
    ) -> frozenset[str]:
        """The sampling params that have an effect. An Enginebay says which have none."""
        known = dialect.known
        if server != "enginebay":
            return known
        body = {**TRIAL, "model": model, "prompt": list(prompt), "max_tokens": 1}
        try:
            response = await http.ask(PATH, body)
            named = response.headers.get("x-unsupported-params", "")
        except UnsupportedParameterError as error:  # with `strict_params`
            named = error.message
        except InvalidRequestError as error:
            logger.warning("cannot ask what the engine behind %s honours: %s", server, error)
            return known
        return known - set(re.findall(r"\w+", named))

    async def _source(
        self, http: Http, model: str, dialect: Dialect, prompt: Sequence[int], *, logprobs: bool
    ) -> Source:
        """Let the server say a token and see how it tells which. Servers may refuse to be asked."""
        body = {"model": model, "prompt": list(prompt), "max_tokens": 1}
        body |= self._options.extra_body
        ids = {"return_token_ids": True}
        names = {"logprobs": dialect.least_logprobs, "return_tokens_as_token_ids": True}
        for asked in (ids | names, names) if logprobs else (ids,):
            try:
                response = await http.ask(PATH, body | asked)
            except InvalidRequestError:
                continue
            return source_of((response.json().get("choices") or [{}])[0])
        return "text"


async def _known(tokens: Tokens, card: Mapping[str, Any], props: Mapping[str, Any]) -> Known:
    """What is known of a tokenizer that is the server's."""
    try:
        await tokens.encode(_SAMPLE, add_special_tokens=True)
    except Exception as error:
        raise BackendUnavailableError(
            "the remote server has no /tokenize; give the option `tokenizer` the model's "
            f"folder, or its tokenizer.json, or set `api: chat` ({error})"
        ) from error
    vocabulary = (card.get("meta") or {}).get("n_vocab")
    template = props.get("chat_template")
    special = {name: str(props[name]) for name in ("bos_token", "eos_token") if props.get(name)}
    end = special.get("eos_token")
    ids = await tokens.encode(end, add_special_tokens=False) if end else []
    return Known(
        **({"vocab_size": vocabulary} if vocabulary else {}),
        chat_templates={"default": template} if template else {},
        special_tokens=special,
        end_token_id=ids[0] if len(ids) == 1 else None,
    )
