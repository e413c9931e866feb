"""Which models the key of a request may use, and what it may see of them."""

from fastapi import Request

from core.config.keys import Key
from core.contract.errors import (
    BackendUnavailableError,
    ModelFailedError,
    ModelNotFoundError,
    ServingError,
)
from core.models.entry import ModelEntry, ShownState
from core.models.registry import FoundModel, Models
from core.server.access.auth import sees_inside

NOT_LOADED = "could not be loaded; the server's log says why"


def may_use(key: Key | None, model: ModelEntry, adapter: str | None = None) -> bool:
    """Whether a model is there for this key; its adapters are with it."""
    names = (adapter or model.name, model.name, *model.config.aliases)
    return key is None or key.may_use(*names)


def shown_to(http: Request, model: ModelEntry) -> tuple[ShownState, str | None]:
    """The state of a model and its error; strangers do not see why it failed."""
    state, error = model.shown
    if state == "failed" and not sees_inside(http):
        error = f"it {NOT_LOADED}"
    return state, error


def visible_error(http: Request, error: ServingError) -> ServingError:
    """An error as the sender of the request may see it."""
    if isinstance(error, ModelFailedError) and not sees_inside(http):
        return BackendUnavailableError(f"the model {NOT_LOADED}", retry_after=error.retry_after)
    return error


def permitted(key: Key | None, name: str | None, models: Models) -> FoundModel:
    """The model a request names; without a name the default model, or the first that its key may
    use.

    `ModelNotFoundError` for an unknown name, and for models that the key may not use.
    """
    if key is None or key.models is None:
        return models.look_up(name)
    usable = [model for model in models.all() if may_use(key, model)]
    if not name and usable:
        return FoundModel(models.default if may_use(key, models.default) else usable[0])
    if name:
        try:
            found = models.look_up(name)
        except ModelNotFoundError:
            pass  # its message names all models
        else:
            if may_use(key, found.entry, found.adapter) or key.may_use(name):
                return found
    listed = ", ".join(model.name for model in usable) or "none"
    raise ModelNotFoundError(
        f"the model {name!r} does not exist for this key; available: {listed}", param="model"
    )
