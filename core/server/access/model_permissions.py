"""Which models the key of a request may use, and what it gets to know of them."""

from fastapi import Request

from core.config.keys import Key
from core.contract.errors import (
    BackendUnavailableError,
    ModelFailedError,
    ModelNotFoundError,
    ServingError,
)
from core.models.entry import LoadedModel, ShownState
from core.models.registry import Models
from core.server.access.auth import sees_inside

NOT_LOADED = "could not be loaded; the server's log says why"


def may_use(key: Key | None, model: LoadedModel) -> bool:
    """Whether a model is there for this key; adapters are, with their model."""
    return key is None or key.may_use(model.name, model.config.name, *model.config.aliases)


def shown_to(http: Request, model: LoadedModel) -> tuple[ShownState, str | None]:
    """The state of a model, and what is wrong with it, but to strangers not why it failed."""
    state, error = model.shown
    if state == "failed" and not sees_inside(http):
        error = f"it {NOT_LOADED}"
    return state, error


def told(http: Request, error: ServingError) -> ServingError:
    """An error as whoever sent the request may know it."""
    if isinstance(error, ModelFailedError) and not sees_inside(http):
        return BackendUnavailableError(f"the model {NOT_LOADED}", retry_after=error.retry_after)
    return error


def permitted_name(key: Key | None, name: str | None, models: Models) -> str | None:
    """The name under which a request gets its model; without one, None for the usual one if its
    key may use that, else the first that it may.

    `ModelNotFoundError` for what is no model; those that it may not use are said not to be there.
    """
    if key is None or key.models is None:
        if name:
            models.find(name)
        return name
    usable = [model.name for model in models.all() if may_use(key, model)]
    if not name and usable:
        return None if may_use(key, models.default) else usable[0]
    if name:
        try:
            found = models.find(name)
        except ModelNotFoundError:
            pass  # its message names all models
        else:
            if may_use(key, found) or key.may_use(name):
                return name
    raise ModelNotFoundError(
        f"the model {name!r} does not exist for this key; available: {', '.join(usable) or 'none'}",
        param="model",
    )
