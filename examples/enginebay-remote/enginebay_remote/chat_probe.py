"""Finds out what a server can do with chats."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from enginebay import Chat, InvalidRequestError, UnsupportedParameterError
from enginebay_remote.chat_dialects import CHAT_DIALECTS, CONTINUOUS
from enginebay_remote.dialects import ALL, TRIAL
from enginebay_remote.facts import Facts
from enginebay_remote.http import Http
from enginebay_remote.options import Options
from enginebay_remote.servers import context_length, find_props, modalities, server_of, slots_of

logger = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
FIELDS = ALL | (frozenset(Chat.__dataclass_fields__) - {"messages", "chosen_params"})


class ChatProbe:
    """The facts of a model that takes chats; of one of several servers also those by which they are
    compared.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    async def __call__(self, http: Http, card: Mapping[str, Any]) -> Facts:
        """A `Probe`."""
        model = str(card["id"])
        server = server_of(http, card, self._options)
        honours = CHAT_DIALECTS[server].fields
        if server == "enginebay":
            honours -= await self._without_effect(http, model)
        props = await find_props(http, server, model) if self._options.servers else {}
        return Facts(
            model=model,
            server=server,
            context_length=context_length(card, self._options) or 0,
            honours=honours,
            modalities=modalities(card, self._options),
            template=props.get("chat_template"),
            slots=slots_of(props),
        )

    async def _without_effect(self, http: Http, model: str) -> frozenset[str]:
        """What the engine of an Enginebay has no use for of sampling params and usage in every
        event; it says which.
        """
        message = {"role": "user", "content": "Hello"}
        body: dict[str, Any] = {**TRIAL, "model": model, "messages": [message]}
        body |= {"max_tokens": 1, "logprobs": True, "stream": True}
        body |= CHAT_DIALECTS["enginebay"].usage(frozenset({CONTINUOUS}))
        body |= self._options.extra_body
        try:
            response = await http.ask(PATH, body)
            named = response.headers.get("x-unsupported-params", "")
        except UnsupportedParameterError as error:  # with `strict_params`
            named = error.message
        except InvalidRequestError as error:
            logger.warning("cannot ask what the engine of %s honours: %s", model, error)
            return frozenset()
        return frozenset(re.findall(r"\w+", named)) & (ALL | {CONTINUOUS})
