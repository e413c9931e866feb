"""Which sampling params a request runs with: its own, else the config's, else the model's."""

from typing import Any

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
    neutral = SamplingParams()
    engine = [
        name for name in model.info.unsupported if getattr(params, name) != getattr(neutral, name)
    ]
    return sorted({*body.unknown_fields(), *engine})
