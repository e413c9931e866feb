"""Which server stands at a URL, which of its models is meant, and how long its context is."""

import logging
from collections.abc import Mapping
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


async def find_card(http: Http, wanted: str | None) -> Mapping[str, Any]:
    """The entry of `/v1/models` that is meant, the first one if nothing is `wanted`.

    Of a server without `/v1/models` it has the name and nothing else.
    """
    try:
        models = await http.get("/v1/models")
    except NotFoundError as error:
        if wanted is None:
            raise BackendUnavailableError(
                f"there is no {http.url('/v1/models')} ({error}); is `path` the address of the "
                "API? For a server that lists no models, the option `model` names one"
            ) from error
        logger.info("%s lists no models; %s is taken to be there", http.root, wanted)
        return {"id": wanted}
    try:
        cards = {str(card["id"]): card for card in models["data"]}
    except (KeyError, TypeError) as error:
        raise BackendUnavailableError(
            f"{http.root}/v1/models does not list models; is it an OpenAI-compatible server?"
        ) from error
    name = wanted or next(iter(cards), None)
    if name not in cards:
        listed = ", ".join(list(cards)[:20]) or "none"
        more = f" and {len(cards) - 20} more" if len(cards) > 20 else ""
        raise BackendUnavailableError(
            f"the remote server has no model {name!r}; it has: {listed}{more}"
        )
    return dict(cards[name])


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
