"""Which models an API key may use."""

from core.config.keys import Key
from core.contract.errors import ModelNotFoundError
from core.models.index import FoundModel
from core.models.loading.entry import ModelEntry
from core.models.registry import Models


def may_use(key: Key | None, model: ModelEntry, adapter: str | None = None) -> bool:
    """Whether a model is there for this key; its adapters are with it."""
    names = (adapter or model.name, model.name, *model.config.aliases)
    return key is None or key.may_use(*names)


def usable(key: Key | None, models: Models) -> list[ModelEntry]:
    """The models that are there for this key: configured, or loaded from the models folder."""
    return [model for model in models.all() if may_use(key, model)]


def listed(key: Key | None, models: Models) -> list[ModelEntry]:
    """The same, and what else `Models.look_at_folder` saw."""
    return [model for model in models.listed() if may_use(key, model)]


def permitted(key: Key | None, name: str | None, models: Models) -> FoundModel:
    """The model a request names; without a name the default model, or the first that its key may
    use.

    `ModelNotFoundError` for an unknown name, and for models that the key may not use.
    """
    if key is None or key.models is None:
        return models.look_up(name)
    there = listed(key, models)
    if not name and there:
        return FoundModel(models.default if may_use(key, models.default) else there[0])
    if name:
        try:
            found = models.look_up(name)
        except ModelNotFoundError:
            pass  # its message names all models
        else:
            if may_use(key, found.entry, found.adapter) or key.may_use(name):
                return found
    available = ", ".join(model.name for model in there) or "none"
    said = f"the model {name!r} does not exist for this key; available: {available}"
    nothing = "there is no model for this key; available: none"
    raise ModelNotFoundError(said if name else nothing, param="model")
