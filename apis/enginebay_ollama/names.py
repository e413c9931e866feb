"""Names of models as Ollama's clients send them, and how long these are to stay."""

from fastapi import Request

from enginebay.config.durations import seconds
from enginebay.contract.errors import ModelNotFoundError
from enginebay.server.api.served import listed_models, named_model
from enginebay.server.http.track import running_request
from enginebay_ollama.request_bodies import OllamaOptions

_ANY_TAG = ":latest"
"""What clients put behind names that have no tag."""


async def known_name(http: Request, name: str) -> str:
    """The name by which the model is found: this one, else without `:latest`.

    `ModelNotFoundError`, in Ollama's words, if the request's key may use no such model.
    """
    for each in filter(None, (name, name.removesuffix(_ANY_TAG))):
        try:
            await named_model(http, each)
        except ModelNotFoundError:
            continue
        return each
    listed = ", ".join(model.name for model in await listed_models(http)) or "none"
    raise ModelNotFoundError(f"model {name!r} not found; available: {listed}", param="model")


def stay_loaded(http: Request, body: OllamaOptions) -> None:
    """Have the request's model stay loaded as long as its `keep_alive` says."""
    if body.keep_alive is not None:
        running_request(http).keep_alive = seconds(body.keep_alive)
