"""Which server stands at a URL, which of its models is meant, and how long its context is."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit

from enginebay import BackendUnavailableError, Modality
from enginebay_remote.failures import NotFoundError
from enginebay_remote.http import Http
from enginebay_remote.options import Options, Server

logger = logging.getLogger(__name__)

HOSTS: Mapping[str, Server] = {
    "api.openai.com": "openai",
    "openrouter.ai": "openrouter",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral",
}

OWNERS: Mapping[str, Server] = {
    "enginebay": "enginebay",
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
}
"""What servers write as `owned_by` in `/v1/models`."""

LENGTHS = ("context_length", "max_model_len", "max_context_length", "context_window")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The model that requests are for.

    `model`: its name on the servers, by the option. Without it, the servers are expected to have a
    model by one of the `names` of the models here, or by one of their `aliases`.
    """

    model: str | None = None
    names: Sequence[str] = ()
    aliases: Sequence[str] = ()

    def choose(self, cards: Mapping[str, Mapping[str, Any]]) -> str:
        """The name of the model among those that a server lists.

        `BackendUnavailableError` if none of them is certain to be meant.
        """
        by_name = {name: name for name in cards}
        for name, card in cards.items():
            for alias in card.get("aliases") or ():
                by_name.setdefault(str(alias), name)
        listed = ", ".join(list(cards)[:20]) or "none"
        listed += f" and {len(cards) - 20} more" if len(cards) > 20 else ""
        if self.model is not None:
            if self.model in by_name:
                return by_name[self.model]
            raise BackendUnavailableError(
                f"the remote server has no model {self.model!r}; it has: {listed}"
            )
        found = dict.fromkeys(by_name[name] for name in self.names if name in by_name)
        if len(found) > 1:
            raise BackendUnavailableError(
                f"the models {', '.join(self.names)} share one engine because of `like`, but the "
                f"remote server has a model for each: {', '.join(found)}. Set the option `model` "
                "of each to its name on the server"
            )
        for name in (*found, *self.aliases):
            if name in by_name:
                return by_name[name]
        if len(cards) == 1:
            return next(iter(cards))
        own = " or ".join(map(repr, (*self.names, *self.aliases)))
        raise BackendUnavailableError(
            f"the remote server has no model {own}; it has: {listed}. Set the option `model` to "
            "the name of the model on the server"
        )


async def find_card(http: Http, wanted: Wanted) -> Mapping[str, Any]:
    """The entry of `/v1/models` that is wanted.

    Of a server without `/v1/models` it has the name and nothing else.
    """
    try:
        models = await http.get("/v1/models")
    except NotFoundError as error:
        if wanted.model is None:
            raise BackendUnavailableError(
                f"there is no {http.url('/v1/models')} ({error}); is `path` the address of the "
                "API? For a server that lists no models, the option `model` names one"
            ) from error
        logger.info("%s lists no models; %s is taken to be there", http.root, wanted.model)
        return {"id": wanted.model}
    try:
        cards = {str(card["id"]): card for card in models["data"]}
    except (KeyError, TypeError) as error:
        raise BackendUnavailableError(
            f"{http.root}/v1/models does not list models; is it an OpenAI-compatible server?"
        ) from error
    return dict(cards[wanted.choose(cards)])


def server_of(http: Http, card: Mapping[str, Any], options: Options) -> Server:
    """What the server is: by the options, its address, or what its list of models says."""
    host = urlsplit(http.root).hostname or ""
    return options.server or HOSTS.get(host) or OWNERS.get(str(card.get("owned_by")), "other")


async def find_props(http: Http, server: Server, model: str) -> Mapping[str, Any]:
    """What llama-server and Enginebay tell of a model: template, special tokens, context, slots."""
    if server == "llama-server":
        return dict(await http.get("/props"))
    if server == "enginebay":
        return dict(await http.get(f"/props?{urlencode({'model': model})}"))
    return {}


def slots_of(props: Mapping[str, Any]) -> int | None:
    """How many choices a server computes at once, as its `/props` say."""
    slots = props.get("total_slots")
    return slots if isinstance(slots, int) and slots > 0 else None


def context_length(card: Mapping[str, Any], options: Options) -> int | None:
    """Tokens of prompt and answer, as far as the options or the server say; names vary."""
    said = (card.get(name) for name in LENGTHS)
    found = options.context_length or next(filter(None, said), None)
    return int(found) if found else None


def modalities(card: Mapping[str, Any], options: Options) -> frozenset[Modality]:
    """What messages may have beside text: by the options, by the card (OpenRouter's words), or all.

    A server that says nothing refuses what its model does not take.
    """
    if options.modalities is not None:
        return frozenset(options.modalities)
    architecture = card.get("architecture")
    said = architecture.get("input_modalities") if isinstance(architecture, Mapping) else None
    kinds: tuple[Modality, ...] = get_args(Modality)
    return frozenset(kind for kind in kinds if not isinstance(said, list) or kind in said)
