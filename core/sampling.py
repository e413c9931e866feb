"""Which sampling params a request runs with: its own, else the config's, else the model's."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from core.errors import UnsupportedParameterError
from core.models import LoadedModel
from core.schemas.common import GenerationBody
from core.types import SamplingParams


def sampling_params(
    body: GenerationBody, model: LoadedModel, *, logprobs: int | None
) -> SamplingParams:
    """The request's values over the config's over those of the model's generation config."""
    chosen: dict[str, Any] = {
        **model.info.defaults,
        **model.config.sampling.params(),
        **body.sampling_fields(),
        "logprobs": logprobs,
    }
    return SamplingParams(**chosen)


def unsupported(body: GenerationBody, params: SamplingParams, model: LoadedModel) -> list[str]:
    """Names of what the request asks for and does not get: unknown here, or to the engine."""
    neutral = _neutral()
    engine = [name for name in model.info.unsupported if getattr(params, name) != neutral.get(name)]
    return sorted({*body.unknown_fields(), *engine})


def refuse_unsupported(names: list[str]) -> None:
    """Raise for parameters that cannot be honoured (`strict_params`)."""
    if names:
        raise UnsupportedParameterError(
            f"unsupported parameters: {', '.join(names)}", param=names[0]
        )


def _neutral() -> Mapping[str, Any]:
    default = SamplingParams()
    return {field.name: getattr(default, field.name) for field in fields(default)}
