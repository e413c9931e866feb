"""Which sampling params a request runs with, and where each of them comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from enginebay.chat.answer.time_limit import TimeLimit
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.overrides import Source
from enginebay.models.served import ServedModel

Body = TypeVar("Body", bound=GenerationBody)

_PARAMS = tuple(field.name for field in fields(SamplingParams))


@dataclass(frozen=True, slots=True)
class PlannedParams:
    """Sampling params, and the source of each one that is set."""

    params: SamplingParams
    sources: Mapping[str, Source]

    def set(self, source: Source, **changes: Any) -> "PlannedParams":
        """The same with these fields, which come from `source`."""
        return PlannedParams(
            replace(self.params, **changes), {**self.sources, **dict.fromkeys(changes, source)}
        )

    def joined(self, source: Source, params: SamplingParams) -> "PlannedParams":
        """The same as `source` completes it to `params`: fields that were set keep their source."""
        changed = [n for n in _PARAMS if getattr(params, n) != getattr(self.params, n)]
        return PlannedParams(params, {**dict.fromkeys(changed, source), **self.sources})


def overridden(body: Body, model: ServedModel) -> Body:
    """A request with the model's sampling overrides applied."""
    return model.overrides.applied_to(body, model.config.sampling.params)


def planned_params(
    sent: GenerationBody,
    body: GenerationBody,
    model: ServedModel,
    most_tokens: int | None,
    *,
    logprobs: int | None,
) -> PlannedParams:
    """Merges the request's values over the config's over the model's generation config.

    A model that hardly ends by itself has a limit of its own; -1 in a request means none.

    `body`: the request after overrides, `sent`: before them. `most_tokens`: how long an answer may
    be by the API key; None: unlimited. An `InvalidRequestError` for a token id that the model does
    not have.
    """
    if not model.info.chats:
        body.check_token_ids(model.info.vocab_size)
    chosen = body.with_defaults(model.config.sampling.defaults).sampling_fields()
    sources = _sources(sent, model)
    if logprobs is not None:
        sources["logprobs"] = "request"
    params = SamplingParams(**{**model.info.defaults, **chosen, "logprobs": logprobs})
    planned = PlannedParams(params, sources)
    says_nothing = params.max_tokens is None and "max_tokens" not in body.model_fields_set
    if says_nothing and model.usual_limit:
        planned = planned.set("model", max_tokens=model.usual_limit)
    asked = planned.params.max_tokens
    if most_tokens is None or (asked is not None and asked <= most_tokens):
        return planned
    return planned.set("key", max_tokens=most_tokens)


def time_limit(body: GenerationBody, model: ServedModel) -> TimeLimit | None:
    """How long the answer may take, by the request, which is after overrides, or the config."""
    milliseconds = body.t_max_predict_ms or 0
    if body.max_seconds is None and milliseconds > 0:
        return TimeLimit(milliseconds / 1000, at_line_end=True)
    seconds = body.with_defaults(model.config.sampling.defaults).max_seconds
    return TimeLimit(seconds) if seconds else None


def sampling_layers(body: GenerationBody, model: ServedModel) -> dict[Source, Mapping[str, Any]]:
    """The sampling params of each source; later ones override earlier ones."""
    return {
        "model": model.info.defaults,
        "config": model.config.sampling.params,
        "request": body.sampling_fields(),
    }


def unsupported(
    sent: GenerationBody, body: GenerationBody, params: SamplingParams, model: ServedModel
) -> list[str]:
    """Names of fields without effect: unknown here, unknown to the engine, or overruled.

    `body`: the request after overrides, `sent`: before them.
    """
    neutral = SamplingParams()
    engine = [
        _sent_as(name, body)
        for name in model.info.unsupported.intersection(_PARAMS)
        if getattr(params, name) != getattr(neutral, name)
    ]
    return sorted({*body.unknown_fields(), *engine, *_overruled(sent, params, model)})


def _overruled(sent: GenerationBody, params: SamplingParams, model: ServedModel) -> set[str]:
    """Names of fields whose values are not those of the params: something overrules them.

    That is a forced override, a temperature range of a preset, or `do_sample` of the request.
    """
    names = {*sent.overruled_fields(), *model.overrides.denied(sent)}
    asked = sent.sampling_fields().get("temperature", params.temperature)
    if sent.temperature is not None and asked != params.temperature:
        names.add("temperature")
    if sent.do_sample is not None and sent.do_sample == (params.temperature == 0):
        names.add("do_sample")
    return names


def _sources(sent: GenerationBody, model: ServedModel) -> dict[str, Source]:
    layers = sampling_layers(sent, model)
    sources = {name: source for source, values in layers.items() for name in values}
    for name, source in model.overrides.sources():
        if source != "preset" or sources.get(name) != "request":
            sources[name] = source
    return sources


def _sent_as(name: str, body: GenerationBody) -> str:
    """What the client calls it: bans go to the engine as a bias, `do_sample` as a temperature."""
    if name == "temperature" and body.do_sample is False:
        return "do_sample"
    return "banned_tokens" if name == "logit_bias" and body.banned_tokens else name
