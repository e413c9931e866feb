"""Which sampling params a request runs with: its own, else the config's, else the model's."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from core.chat.schemas.explain_bodies import Source
from core.chat.schemas.generation_request import GenerationBody
from core.chat.schemas.sampling_request import check_token_ids
from core.contract.sampling_params import SamplingParams
from core.models.entry import LoadedModel

Body = TypeVar("Body", bound=GenerationBody)

_PARAMS = frozenset(field.name for field in fields(SamplingParams))


def overridden(body: Body, model: LoadedModel) -> Body:
    """A request as the sampling overrides of its model make it."""
    return model.overrides.applied_to(body, model.config.sampling.params())


def sampling_params(
    body: GenerationBody, model: LoadedModel, *, logprobs: int | None
) -> SamplingParams:
    """The request's values over the config's over those of the model's generation config.

    An `InvalidRequestError` for a token id that the model does not have.
    """
    if not model.info.chats:
        check_token_ids(body, model.info.vocab_size)
    chosen: dict[str, Any] = {}
    for values in sampling_layers(body, model).values():
        chosen |= values
    return SamplingParams(**{**chosen, "logprobs": logprobs})


def sampling_layers(body: GenerationBody, model: LoadedModel) -> dict[Source, Mapping[str, Any]]:
    """What each source says of sampling params, a later one over those before it."""
    return {
        "model": model.info.defaults,
        "config": model.config.sampling.params(),
        "request": body.sampling_fields(),
    }


def sampling_sources(body: GenerationBody, model: LoadedModel) -> dict[str, Source]:
    """Where each param comes from that somebody sets; `body` as it was sent."""
    layers = sampling_layers(body, model)
    sources = {name: source for source, values in layers.items() for name in values}
    for name, source in model.overrides.sources():
        if source != "preset" or sources.get(name) != "request":
            sources[name] = source
    return sources


def unsupported(body: GenerationBody, params: SamplingParams, model: LoadedModel) -> list[str]:
    """Names of what the request asks for and does not get: unknown here, or to the engine."""
    neutral = SamplingParams()
    engine = [
        _sent_as(name, body)
        for name in model.info.unsupported & _PARAMS
        if getattr(params, name) != getattr(neutral, name)
    ]
    return sorted({*body.unknown_fields(), *engine})


def _sent_as(name: str, body: GenerationBody) -> str:
    """Bans go to the engine as a bias, which is not what the client calls them."""
    return "banned_tokens" if name == "logit_bias" and body.banned_tokens else name
